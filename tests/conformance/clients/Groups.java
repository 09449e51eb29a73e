// Groups by Kafka's own Java client, for test_groups_java.py: prints one line for each finding.

import java.time.Duration;
import java.util.*;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;

public class Groups {
    static String bootstrap;
    static Admin admin;
    static List<String> read = new ArrayList<>();

    static KafkaConsumer<String, String> member(String group, Map<String, Object> more) {
        var settings = new HashMap<String, Object>(Map.of(
            "bootstrap.servers", bootstrap, "group.id", group, "auto.offset.reset", "earliest",
            "enable.auto.commit", "false", "metadata.max.age.ms", "500"));
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static void until(BooleanSupplier done, List<KafkaConsumer<String, String>> members) {
        long deadline = System.nanoTime() + 120_000_000_000L;
        while (!done.getAsBoolean()) {
            if (System.nanoTime() > deadline) throw new IllegalStateException("too late");
            for (var member : members)
                for (var record : member.poll(Duration.ofMillis(50)))
                    read.add(record.topic() + record.partition() + "@" + record.offset());
        }
    }

    static void write(String topic, int partitions, int count) throws Exception {
        try (var producer = new KafkaProducer<>(
                Map.<String, Object>of("bootstrap.servers", bootstrap),
                new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < count; i++)
                producer.send(new ProducerRecord<>(topic, i % partitions, null, "v"));
        }
    }

    static void create(String topic, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
    }

    static Set<Integer> held(KafkaConsumer<String, String> member) {
        return member.assignment().stream().map(TopicPartition::partition)
            .collect(Collectors.toCollection(TreeSet::new));
    }

    // Two members share, commit, and one goes on where the other stopped.
    static void share(String name, Map<String, Object> settings) throws Exception {
        create(name, 4);
        read.clear();
        var revoked = new TreeSet<Integer>();
        var first = member(name, settings);
        var second = member(name, settings);
        first.subscribe(List.of(name), new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                partitions.forEach(p -> revoked.add(p.partition()));
            }
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
        });
        until(() -> held(first).size() == 4, List.of(first));
        second.subscribe(List.of(name));
        until(() -> held(first).size() == 2 && held(second).size() == 2, List.of(first, second));
        // Whatever it kept was never taken from it.
        System.out.println(name + " kept " + Collections.disjoint(revoked, held(first)));
        write(name, 4, 400);
        until(() -> read.size() >= 400, List.of(first, second));
        first.commitSync();
        second.commitSync();
        first.close();
        until(() -> held(second).size() == 4, List.of(second));
        write(name, 4, 8);
        until(() -> read.size() >= 408, List.of(second));
        System.out.println(name + " read " + read.size() + " " + new HashSet<>(read).size());
        second.close();
    }

    // A member that is back within the session timeout has what it had, and nobody is disturbed.
    static void comeBack(String name, Map<String, Object> settings) throws Exception {
        create(name, 4);
        var one = new HashMap<>(settings);
        var two = new HashMap<>(settings);
        one.put("group.instance.id", "one");
        two.put("group.instance.id", "two");
        var first = member(name, one);
        var second = member(name, two);
        for (var each : List.of(first, second)) each.subscribe(List.of(name));
        until(() -> held(first).size() == 2 && held(second).size() == 2, List.of(first, second));
        var before = List.of(held(first), held(second));
        first.close();
        var again = member(name, one);
        again.subscribe(List.of(name));
        until(() -> held(again).size() == 2, List.of(again, second));
        System.out.println(name + " same " + before.equals(List.of(held(again), held(second))));
        again.close();
        second.close();
    }

    static void patterns() throws Exception {
        create("java-seen-1", 2);
        create("java-not", 1);
        var member = member("java-patterns", Map.of("group.protocol", "consumer"));
        member.subscribe(new SubscriptionPattern("java-seen-.*"));
        until(() -> member.assignment().size() == 2, List.of(member));
        create("java-seen-2", 1);
        until(() -> member.assignment().size() == 3, List.of(member));
        var names = member.assignment().stream().map(TopicPartition::topic);
        System.out.println("pattern " + names.collect(Collectors.toCollection(TreeSet::new)));
        var group = admin.describeConsumerGroups(List.of("java-patterns")).all().get();
        var told = group.get("java-patterns");
        System.out.println("told " + told.type() + " " + told.groupState() + " "
            + told.partitionAssignor());
        member.close();
        var broken = member("java-broken", Map.of("group.protocol", "consumer"));
        broken.subscribe(new SubscriptionPattern("("));
        try {
            until(() -> false, List.of(broken));
        } catch (KafkaException error) {
            System.out.println("broken " + error.getClass().getSimpleName());
        }
        broken.close();
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap));
        var consumer = Map.<String, Object>of("group.protocol", "consumer");
        var range = Map.<String, Object>of(
            "group.protocol", "consumer", "group.remote.assignor", "range");
        var cooperative = Map.<String, Object>of(
            "partition.assignment.strategy", CooperativeStickyAssignor.class.getName(),
            "heartbeat.interval.ms", "200");
        share("java-consumer", consumer);
        share("java-range", range);
        share("java-cooperative", cooperative);
        comeBack("java-static", cooperative);
        comeBack("java-static-new", consumer);
        patterns();
        admin.close();
    }
}
