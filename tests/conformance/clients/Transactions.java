// Transactions by Kafka's own Java client, for test_java.py: prints one line for each finding.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class Transactions {
    static String bootstrap;

    static KafkaProducer<String, String> producer(String id) {
        var producer = new KafkaProducer<>(
            Map.<String, Object>of("bootstrap.servers", bootstrap, "transactional.id", id),
            new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    static KafkaConsumer<String, String> consumer(String group, String level) {
        return new KafkaConsumer<>(
            Map.<String, Object>of(
                "bootstrap.servers", bootstrap, "group.id", group, "isolation.level", level,
                "auto.offset.reset", "earliest", "enable.auto.commit", "false"),
            new StringDeserializer(), new StringDeserializer());
    }

    static List<String> read(String topic, String level) {
        try (var consumer = consumer("reads-alone", level)) {
            var partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var ends = consumer.endOffsets(partitions);
            var values = new ArrayList<String>();
            while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p)))
                for (var record : consumer.poll(Duration.ofMillis(200))) values.add(record.value());
            Collections.sort(values);
            return values;
        }
    }

    static void send(KafkaProducer<String, String> producer, String topic, String value) {
        for (int partition = 0; partition < 2; partition++)
            producer.send(new ProducerRecord<>(topic, partition, null, value + "/" + partition));
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        var admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap));
        for (var name : List.of("ends", "fences", "in", "out"))
            admin.createTopics(List.of(new NewTopic(name, 2, (short) 1))).all().get();

        var ends = producer("java-ends");
        for (int round = 0; round < 6; round++) {
            ends.beginTransaction();
            send(ends, "ends", "r" + round);
            ends.flush();
            if (round % 2 == 0) ends.commitTransaction(); else ends.abortTransaction();
        }
        System.out.println("committed " + read("ends", "read_committed"));
        System.out.println("written " + read("ends", "read_uncommitted").size());
        var described = admin.describeTransactions(List.of("java-ends")).all().get();
        var state = described.get("java-ends");
        System.out.println("state " + state.state() + " epoch " + state.producerEpoch());

        var first = producer("java-fences");
        first.beginTransaction();
        send(first, "fences", "first");
        first.flush();
        System.out.println("open " + admin.listTransactions(
            new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING)))
            .all().get().size());
        var second = producer("java-fences");
        try {
            first.commitTransaction();
            System.out.println("fenced no");
        } catch (ProducerFencedException | InvalidProducerEpochException error) {
            System.out.println("fenced yes");
        }
        second.beginTransaction();
        send(second, "fences", "second");
        second.commitTransaction();
        System.out.println("after " + read("fences", "read_committed"));

        var feed = producer("java-feed");
        feed.beginTransaction();
        for (int n = 0; n < 10; n++) send(feed, "in", "n" + n);
        feed.commitTransaction();
        var loop = producer("java-loop");
        for (boolean commit : new boolean[] {false, true, true}) {
            try (var consumer = consumer("java-loop", "read_committed")) {
                consumer.subscribe(List.of("in"));
                ConsumerRecords<String, String> records = ConsumerRecords.empty();
                long deadline = System.currentTimeMillis() + 60_000;
                while (records.isEmpty() && System.currentTimeMillis() < deadline)
                    records = consumer.poll(Duration.ofMillis(200));
                loop.beginTransaction();
                var positions = new HashMap<TopicPartition, OffsetAndMetadata>();
                for (var record : records) {
                    loop.send(new ProducerRecord<>("out", record.partition(), null, record.value()));
                    positions.put(new TopicPartition("in", record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                }
                loop.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                if (commit) loop.commitTransaction(); else loop.abortTransaction();
            }
            if (commit && read("out", "read_committed").size() == 20) break;
        }
        System.out.println("looped " + read("out", "read_committed").size());
        for (var open : List.of(ends, first, second, feed, loop)) open.close();
        admin.close();
    }
}
