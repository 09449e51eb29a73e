SELECT name FROM topic WHERE replace(name, '.', '_') = ? ORDER BY name;
