"""The main job on one machine: fed, killed, restored and compared with a plain reference."""
