// Two members by Kafka's own Java client, for test_group_takeover.py: each processes and commits
// until the process ends, and prints what happens to it, a line each.

import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class Takeover {
    static void say(int member, String what) {
        System.out.println(member + " " + what);
    }

    static String numbers(Collection<TopicPartition> places) {
        return places.stream().map(p -> " " + p.partition()).collect(Collectors.joining());
    }

    static ConsumerRebalanceListener listener(int member) {
        return new ConsumerRebalanceListener() {
            public void onPartitionsAssigned(Collection<TopicPartition> places) {
                say(member, "assigned" + numbers(places));
            }
            public void onPartitionsRevoked(Collection<TopicPartition> places) {
                if (!places.isEmpty()) say(member, "revoked" + numbers(places));
            }
            public void onPartitionsLost(Collection<TopicPartition> places) {
                say(member, "lost" + numbers(places));
            }
        };
    }

    static void run(int member, Map<String, Object> settings, String topic) {
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(topic), listener(member));
            while (true) {
                var ends = new HashMap<TopicPartition, OffsetAndMetadata>();
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    say(member, "read " + record.partition() + " " + record.offset());
                    var place = new TopicPartition(topic, record.partition());
                    ends.put(place, new OffsetAndMetadata(record.offset() + 1));
                }
                while (!ends.isEmpty()) {
                    try {
                        consumer.commitSync(ends, Duration.ofSeconds(5));
                        ends.forEach((p, o) ->
                            say(member, "committed " + p.partition() + " " + o.offset()));
                        break;
                    } catch (org.apache.kafka.common.errors.TimeoutException again) {
                        continue;
                    } catch (KafkaException refused) {
                        say(member, "refused " + refused.getClass().getSimpleName());
                        break;
                    }
                }
            }
        }
    }

    public static void main(String[] given) {
        String topic = given[1];
        for (int number = 0; number < 2; number++) {
            int member = number;
            var settings = new HashMap<String, Object>(Map.of(
                "bootstrap.servers", given[0], "group.id", topic + "-readers",
                "group.protocol", given[2], "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "reconnect.backoff.max.ms", "500"));
            if (given[2].equals("classic")) settings.put("heartbeat.interval.ms", "300");
            if (given.length > 3) settings.put("metadata.recovery.strategy", given[3]);
            new Thread(() -> run(member, settings, topic)).start();
        }
    }
}
