// Java's kafka-clients; with GROUP_PROTOCOL=consumer its groups speak KIP-848 wherever they can.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Steps {
    interface Body {
        void run() throws Exception;
    }

    /** A step that this client cannot take, and why. */
    static class Skipped extends Exception {
        Skipped(String why) {
            super(why);
        }
    }

    record Pair(String key, String value) {}

    static final Duration STEP = Duration.ofMillis(100);
    static final long DEADLINE_MS = 40_000;
    static final String PROTOCOL = System.getenv().getOrDefault("GROUP_PROTOCOL", "classic");
    static final List<Pair> WRITTEN = IntStream.range(0, 100)
        .mapToObj(i -> new Pair("k" + i % 7, i + ":" + "water".repeat(8)))
        .toList();
    static String bootstrap;
    static String prefix;
    static Admin admin;

    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        prefix = arguments[1];
        admin = Admin.create(properties());
        Map<String, Body> steps = steps();
        for (String name : Arrays.copyOfRange(arguments, 2, arguments.length)) {
            System.out.println(outcome(name, steps.get(name)));
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static String outcome(String name, Body body) {
        if (body == null) {
            return "skip " + name + " the library has no such call";
        }
        try {
            body.run();
            return "pass " + name;
        } catch (Skipped reason) {
            return "skip " + name + " " + reason.getMessage();
        } catch (Throwable error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            return "fail " + name + " " + cause.toString().replace('\n', ' ');
        }
    }

    static Map<String, Body> steps() {
        Map<String, Body> steps = new LinkedHashMap<>();
        steps.put("create-topic", Steps::createTopic);
        steps.put("metadata", Steps::metadata);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            steps.put("produce-" + codec,
                () -> writtenIsRead("codec-" + codec, "compression.type", codec));
        }
        for (String acks : List.of("all", "1", "0")) {
            steps.put("acks-" + acks, () -> writtenIsRead("acks-" + acks,
                "acks", acks, "enable.idempotence", "false"));
        }
        steps.put("idempotent", Steps::idempotent);
        steps.put("headers", Steps::headers);
        steps.put("null-key-value", Steps::nullKeyValue);
        steps.put("large-record", Steps::largeRecord);
        steps.put("consume-earliest", Steps::consumeEarliest);
        steps.put("consume-latest", Steps::consumeLatest);
        steps.put("consume-timestamp", Steps::consumeTimestamp);
        steps.put("long-session", Steps::longSession);
        steps.put("group-one", Steps::groupOne);
        steps.put("group-resume", Steps::groupResume);
        steps.put("group-eager", () -> classicMembers("eager", RangeAssignor.class));
        steps.put("group-cooperative",
            () -> classicMembers("cooperative", CooperativeStickyAssignor.class));
        steps.put("group-static", Steps::groupStatic);
        steps.put("group-consumer", () -> twoMembers("consumer", "group.protocol", "consumer"));
        steps.put("txn-commit", Steps::txnCommit);
        steps.put("txn-abort", Steps::txnAbort);
        steps.put("txn-isolation", Steps::txnIsolation);
        steps.put("txn-offsets", Steps::txnOffsets);
        steps.put("txn-fencing", Steps::txnFencing);
        steps.put("delete-topic", Steps::deleteTopic);
        steps.put("create-partitions", Steps::createPartitions);
        steps.put("configs", Steps::configs);
        steps.put("delete-records", Steps::deleteRecords);
        steps.put("list-offsets", Steps::listOffsets);
        steps.put("groups", Steps::groups);
        steps.put("delete-group-offsets", Steps::deleteGroupOffsets);
        return steps;
    }

    // What the steps share.

    static void same(Object found, Object wanted, String what) {
        if (!found.equals(wanted)) {
            throw new AssertionError(what + ": " + found + " instead of " + wanted);
        }
    }

    static void until(String what, Callable<Boolean> isSo) throws Exception {
        until(what, DEADLINE_MS, isSo);
    }

    static void until(String what, long withinMs, Callable<Boolean> isSo) throws Exception {
        long deadline = System.nanoTime() + withinMs * 1_000_000;
        while (!isSo.call()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError(what + " did not happen within " + withinMs + " ms");
            }
            Thread.sleep(20);
        }
    }

    static String topic(String name, int partitions) throws Exception {
        String made = prefix + "-" + name;
        admin.createTopics(List.of(new NewTopic(made, partitions, (short) 1))).all().get();
        until("metadata of " + made, () -> partitionsOf(made) == partitions);
        return made;
    }

    static int partitionsOf(String name) throws Exception {
        try {
            return described(name).partitions().size();
        } catch (ExecutionException notYet) {
            return -1;
        }
    }

    static TopicDescription described(String name) throws Exception {
        return admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
    }

    static Properties properties(String... settings) {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        made.putAll(security());
        for (int i = 0; i < settings.length; i += 2) {
            made.put(settings[i], settings[i + 1]);
        }
        return made;
    }

    /** How the client comes in, as its environment has it (conformance/security.py). */
    static Map<String, String> security() {
        Map<String, String> told = System.getenv();
        Map<String, String> made = new LinkedHashMap<>();
        if (!told.containsKey("SECURITY_PROTOCOL")) {
            return made;
        }
        made.put("security.protocol", told.get("SECURITY_PROTOCOL"));
        made.put("ssl.truststore.type", "PEM");
        made.put("ssl.truststore.location", told.get("SSL_CA"));
        if (told.containsKey("SSL_CERTIFICATE")) {
            made.put("ssl.keystore.type", "PEM");
            made.put("ssl.keystore.location", told.get("SSL_CERTIFICATE"));
        }
        String mechanism = told.get("SASL_MECHANISM");
        if (mechanism == null) {
            return made;
        }
        String module = "org.apache.kafka.common.security.";
        String user = "username";
        String password = "password";
        if (mechanism.equals("OAUTHBEARER")) {
            String endpoint = told.get("TOKEN_ENDPOINT");
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", endpoint);
            made.put("sasl.oauthbearer.token.endpoint.url", endpoint);
            made.put("sasl.login.callback.handler.class",
                module + "oauthbearer.OAuthBearerLoginCallbackHandler");
            module += "oauthbearer.OAuthBearerLoginModule";
            user = "clientId";
            password = "clientSecret";
        } else {
            module += mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        }
        made.put("sasl.mechanism", mechanism);
        made.put("sasl.jaas.config", String.format("%s required %s=\"%s\" %s=\"%s\";", module,
            user, told.get("SASL_USERNAME"), password, told.get("SASL_PASSWORD")));
        return made;
    }

    static KafkaProducer<byte[], byte[]> producer(String... settings) {
        ByteArraySerializer plain = new ByteArraySerializer();
        return new KafkaProducer<>(properties(settings), plain, plain);
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group, String... settings) {
        Properties made = properties();
        made.put("group.id", prefix + "-" + group);
        made.put("auto.offset.reset", "earliest");
        made.put("enable.auto.commit", "false");
        made.put("group.protocol", PROTOCOL);
        made.putAll(properties(settings));
        ByteArrayDeserializer plain = new ByteArrayDeserializer();
        return new KafkaConsumer<>(made, plain, plain);
    }

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] data) {
        return data == null ? null : new String(data, StandardCharsets.UTF_8);
    }

    static List<RecordMetadata> write(String name, List<Pair> pairs, String... settings)
            throws Exception {
        return write(name, 0, pairs, settings);
    }

    static List<RecordMetadata> write(String name, int partition, List<Pair> pairs,
            String... settings) throws Exception {
        try (KafkaProducer<byte[], byte[]> client = producer(settings)) {
            return put(client, name, partition, pairs);
        }
    }

    static List<RecordMetadata> put(KafkaProducer<byte[], byte[]> client, String name,
            int partition, List<Pair> pairs) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (Pair pair : pairs) {
            sent.add(client.send(new ProducerRecord<>(name, partition, bytes(pair.key()),
                bytes(pair.value()))));
        }
        client.flush();
        List<RecordMetadata> told = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) {
            told.add(each.get());
        }
        return told;
    }

    static List<ConsumerRecord<byte[], byte[]>> read(KafkaConsumer<byte[], byte[]> client,
            int count, long withinMs) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.nanoTime() + withinMs * 1_000_000;
        while (found.size() < count && System.nanoTime() < deadline) {
            client.poll(STEP).forEach(found::add);
        }
        return found;
    }

    static List<ConsumerRecord<byte[], byte[]>> readBack(String name, int count,
            String... settings) {
        try (KafkaConsumer<byte[], byte[]> client = consumer("none", settings)) {
            client.assign(List.of(new TopicPartition(name, 0)));
            client.seek(new TopicPartition(name, 0), 0);
            return read(client, count, 30_000);
        }
    }

    static List<Pair> pairs(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(r -> new Pair(text(r.key()), text(r.value()))).toList();
    }

    static List<Long> offsets(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(ConsumerRecord::offset).toList();
    }

    static void writtenIsRead(String name, String... settings) throws Exception {
        String made = topic(name, 1);
        write(made, WRITTEN, settings);
        same(pairs(readBack(made, 100)), WRITTEN, "records");
    }

    // The steps.

    static void createTopic() throws Exception {
        String name = topic("create", 3);
        try {
            admin.createTopics(List.of(new NewTopic(name, 3, (short) 1))).all().get();
        } catch (ExecutionException error) {
            same(error.getCause().getClass(), TopicExistsException.class, "error");
            return;
        }
        throw new AssertionError("the second creation was not refused");
    }

    static void metadata() throws Exception {
        String name = topic("metadata", 3);
        Set<Integer> brokers = admin.describeCluster().nodes().get().stream()
            .map(node -> node.id()).collect(Collectors.toSet());
        same(brokers.size(), 1, "brokers");
        Set<Integer> leaders = described(name).partitions().stream()
            .map(partition -> partition.leader().id()).collect(Collectors.toSet());
        same(leaders, brokers, "leaders");
    }

    static void idempotent() throws Exception {
        String name = topic("idempotent", 1);
        List<Long> told = write(name, WRITTEN, "enable.idempotence", "true").stream()
            .map(RecordMetadata::offset).toList();
        same(told, IntStream.range(0, 100).mapToObj(i -> (long) i).toList(), "offsets");
        same(pairs(readBack(name, 100)), WRITTEN, "records");
    }

    static void headers() throws Exception {
        String name = topic("headers", 1);
        try (KafkaProducer<byte[], byte[]> client = producer()) {
            ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(name, bytes("v"));
            record.headers().add("a", bytes("1")).add("a", bytes("2"));
            record.headers().add("none", null).add("empty", bytes(""));
            client.send(record).get();
        }
        List<String> found = new ArrayList<>();
        for (Header header : readBack(name, 1).get(0).headers()) {
            found.add(header.key() + "=" + text(header.value()));
        }
        same(found, List.of("a=1", "a=2", "none=null", "empty="), "headers");
    }

    static void nullKeyValue() throws Exception {
        String name = topic("nulls", 1);
        List<Pair> given = List.of(new Pair(null, "v"), new Pair("k", null), new Pair("", ""),
            new Pair(null, null));
        write(name, given);
        same(pairs(readBack(name, 4)), given, "records");
    }

    static void largeRecord() throws Exception {
        String name = topic("large", 1);
        List<Pair> given = List.of(new Pair("k", "0123456789".repeat(90_000)));
        write(name, given);
        same(pairs(readBack(name, 1)).equals(given), true, "the record is read back");
    }

    static void consumeEarliest() throws Exception {
        String name = topic("earliest", 1);
        write(name, WRITTEN);
        try (KafkaConsumer<byte[], byte[]> client = consumer("earliest")) {
            client.subscribe(List.of(name));
            same(pairs(read(client, 100, 30_000)), WRITTEN, "records");
        }
    }

    static void consumeLatest() throws Exception {
        String name = topic("latest", 1);
        write(name, WRITTEN);
        try (KafkaConsumer<byte[], byte[]> client =
                consumer("latest", "auto.offset.reset", "latest")) {
            client.subscribe(List.of(name));
            until("the assignment", () -> {
                client.poll(STEP);
                return !client.assignment().isEmpty();
            });
            same(client.position(new TopicPartition(name, 0)), 100L, "position");
            write(name, List.of(new Pair("new", "record")));
            same(offsets(read(client, 1, 30_000)), List.of(100L), "offsets");
        }
    }

    static void consumeTimestamp() throws Exception {
        String name = topic("timestamp", 1);
        TopicPartition at = new TopicPartition(name, 0);
        long began = System.currentTimeMillis() - 60_000;
        try (KafkaProducer<byte[], byte[]> client = producer()) {
            for (int second = 0; second < 10; second++) {
                long time = began + second * 1000L;
                client.send(new ProducerRecord<>(name, 0, time, null, bytes("v"))).get();
            }
        }
        long[][] asked = {{0, 0}, {4_500, 5}, {9_000, 9}};
        try (KafkaConsumer<byte[], byte[]> client = consumer("none")) {
            for (long[] each : asked) {
                long found = client.offsetsForTimes(Map.of(at, began + each[0])).get(at).offset();
                same(found, each[1], "offset " + each[0] + " ms after the first");
            }
            Object none = client.offsetsForTimes(Map.of(at, began + 9_001)).get(at);
            same(none == null, true, "nothing is behind the last");
        }
    }

    static void longSession() throws Exception {
        String name = topic("session", 1);
        long seconds = Math.round(Double.parseDouble(
            System.getenv().getOrDefault("SESSION_S", "3")));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> writer = producer();
                KafkaConsumer<byte[], byte[]> reader = consumer("session")) {
            reader.assign(List.of(new TopicPartition(name, 0)));
            reader.seek(new TopicPartition(name, 0), 0);
            long end = System.nanoTime() + seconds * 1_000_000_000;
            while (System.nanoTime() < end) {
                byte[] value = bytes(Integer.toString(sent.size()));
                sent.add(writer.send(new ProducerRecord<>(name, 0, null, value)));
                reader.poll(Duration.ofMillis(10)).forEach(found::add);
            }
            writer.flush();
            for (int i = 0; i < sent.size(); i++) {
                same(sent.get(i).get().offset(), (long) i, "offset");
            }
            found.addAll(read(reader, sent.size() - found.size(), 30_000));
        }
        same(found.stream().map(r -> text(r.value())).toList(),
            IntStream.range(0, sent.size()).mapToObj(Integer::toString).toList(), "values");
    }

    static void groupOne() throws Exception {
        String name = topic("one", 3);
        for (int partition = 0; partition < 3; partition++) {
            write(name, partition, WRITTEN.subList(0, 10));
        }
        try (KafkaConsumer<byte[], byte[]> client = consumer("one")) {
            client.subscribe(List.of(name));
            same(read(client, 30, 30_000).size(), 30, "records");
            same(client.assignment().size(), 3, "partitions");
        }
    }

    static void groupResume() throws Exception {
        String name = topic("resume", 1);
        TopicPartition at = new TopicPartition(name, 0);
        write(name, WRITTEN);
        try (KafkaConsumer<byte[], byte[]> client = consumer("resume")) {
            client.subscribe(List.of(name));
            same(read(client, 100, 30_000).size(), 100, "records");
            client.commitSync(Map.of(at, new OffsetAndMetadata(40, "up to here")));
            same(client.committed(Set.of(at)).get(at).metadata(), "up to here", "metadata");
        }
        try (KafkaConsumer<byte[], byte[]> client = consumer("resume")) {
            client.subscribe(List.of(name));
            List<Long> rest = IntStream.range(40, 100).mapToObj(i -> (long) i).toList();
            same(offsets(read(client, 60, 30_000)), rest, "offsets");
        }
    }

    static void classicMembers(String group, Class<?> assignor) throws Exception {
        if (PROTOCOL.equals("consumer")) {
            throw new Skipped("an assignor of the client belongs to the classic protocol");
        }
        twoMembers(group, "partition.assignment.strategy", assignor.getName());
    }

    static void twoMembers(String group, String... settings) throws Exception {
        String name = topic(group, 4);
        try (KafkaConsumer<byte[], byte[]> first = consumer(group, settings)) {
            first.subscribe(List.of(name));
            until("four partitions for the first", () -> shares(List.of(first), 4));
            try (KafkaConsumer<byte[], byte[]> second = consumer(group, settings)) {
                second.subscribe(List.of(name));
                until("two partitions for each", () -> shares(List.of(first, second), 2));
            }
            until("four partitions for the first again", () -> shares(List.of(first), 4));
        }
    }

    static boolean shares(List<KafkaConsumer<byte[], byte[]>> clients, int each) {
        clients.forEach(client -> client.poll(STEP));
        return clients.stream().allMatch(client -> client.assignment().size() == each);
    }

    static void groupStatic() throws Exception {
        String name = topic("static", 4);
        try (KafkaConsumer<byte[], byte[]> first = member("a", name)) {
            Set<String> had;
            try (KafkaConsumer<byte[], byte[]> second = member("b", name)) {
                until("two partitions for each", () -> shares(List.of(first, second), 2));
                had = names(second);
            }
            try (KafkaConsumer<byte[], byte[]> second = member("b", name)) {
                until("two for each after the restart", 15_000,
                    () -> shares(List.of(first, second), 2));
                same(names(second), had, "partitions");
            }
        }
    }

    static KafkaConsumer<byte[], byte[]> member(String instance, String name) {
        KafkaConsumer<byte[], byte[]> client = consumer("static", "group.instance.id", instance);
        client.subscribe(List.of(name));
        return client;
    }

    static Set<String> names(KafkaConsumer<byte[], byte[]> client) {
        return client.assignment().stream().map(Object::toString)
            .collect(Collectors.toCollection(TreeSet::new));
    }

    static KafkaProducer<byte[], byte[]> transactional(String name) {
        KafkaProducer<byte[], byte[]> client = producer("transactional.id", prefix + "-" + name);
        client.initTransactions();
        return client;
    }

    static void txnCommit() throws Exception {
        String name = topic("commit", 1);
        try (KafkaProducer<byte[], byte[]> client = transactional("commit")) {
            client.beginTransaction();
            put(client, name, 0, WRITTEN.subList(0, 10));
            client.commitTransaction();
        }
        same(pairs(readBack(name, 10, "isolation.level", "read_committed")),
            WRITTEN.subList(0, 10), "records");
    }

    static void txnAbort() throws Exception {
        String name = topic("abort", 1);
        try (KafkaProducer<byte[], byte[]> client = transactional("abort")) {
            client.beginTransaction();
            put(client, name, 0, WRITTEN.subList(0, 5));
            client.abortTransaction();
            client.beginTransaction();
            put(client, name, 0, WRITTEN.subList(0, 5));
            client.commitTransaction();
        }
        same(offsets(readBack(name, 5, "isolation.level", "read_committed")),
            List.of(6L, 7L, 8L, 9L, 10L), "committed offsets");
        same(offsets(readBack(name, 10)),
            List.of(0L, 1L, 2L, 3L, 4L, 6L, 7L, 8L, 9L, 10L), "all offsets");
    }

    static void txnIsolation() throws Exception {
        String name = topic("isolation", 1);
        write(name, WRITTEN.subList(0, 3));
        try (KafkaProducer<byte[], byte[]> client = transactional("isolation");
                KafkaConsumer<byte[], byte[]> reader =
                    consumer("none", "isolation.level", "read_committed")) {
            client.beginTransaction();
            put(client, name, 0, WRITTEN.subList(0, 2));
            write(name, WRITTEN.subList(0, 1));
            reader.assign(List.of(new TopicPartition(name, 0)));
            reader.seekToBeginning(reader.assignment());
            same(offsets(read(reader, 6, 3_000)), List.of(0L, 1L, 2L), "offsets before the end");
            client.commitTransaction();
            same(offsets(read(reader, 3, 30_000)), List.of(3L, 4L, 5L), "offsets after the end");
        }
    }

    static void txnOffsets() throws Exception {
        String name = topic("offsets", 1);
        TopicPartition at = new TopicPartition(name, 0);
        write(name, WRITTEN);
        try (KafkaProducer<byte[], byte[]> client = transactional("offsets");
                KafkaConsumer<byte[], byte[]> reader = consumer("txn")) {
            reader.subscribe(List.of(name));
            same(read(reader, 100, 30_000).size(), 100, "records");
            for (long position : new long[] {10, 20}) {
                client.beginTransaction();
                client.sendOffsetsToTransaction(Map.of(at, new OffsetAndMetadata(position)),
                    reader.groupMetadata());
                if (position == 10) {
                    client.commitTransaction();
                } else {
                    client.abortTransaction();
                }
                same(reader.committed(Set.of(at)).get(at).offset(), 10L, "committed offset");
            }
        }
    }

    static void txnFencing() throws Exception {
        String name = topic("fencing", 1);
        KafkaProducer<byte[], byte[]> older = transactional("fencing");
        older.beginTransaction();
        put(older, name, 0, WRITTEN.subList(0, 1));
        try (KafkaProducer<byte[], byte[]> newer = transactional("fencing")) {
            same(isFenced(older), true, "the older producer is fenced");
            newer.beginTransaction();
            put(newer, name, 0, WRITTEN.subList(0, 1));
            newer.commitTransaction();
        }
        older.close(Duration.ZERO);
        int committed = readBack(name, 1, "isolation.level", "read_committed").size();
        same(committed, 1, "records");
    }

    static boolean isFenced(KafkaProducer<byte[], byte[]> client) {
        try {
            client.commitTransaction();
            return false;
        } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            return true;
        } catch (KafkaException wrapped) {
            return wrapped.getCause() instanceof ProducerFencedException
                || wrapped.getCause() instanceof InvalidProducerEpochException;
        }
    }

    static void deleteTopic() throws Exception {
        String name = topic("delete", 1);
        admin.deleteTopics(List.of(name)).all().get();
        until("the deletion", () -> !admin.listTopics().names().get().contains(name));
    }

    static void createPartitions() throws Exception {
        String name = topic("grow", 1);
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all().get();
        until("three partitions", () -> partitionsOf(name) == 3);
    }

    static void configs() throws Exception {
        ConfigResource resource =
            new ConfigResource(ConfigResource.Type.TOPIC, topic("configs", 1));
        AlterConfigOp set =
            new AlterConfigOp(new ConfigEntry("retention.ms", "123456"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        until("the altered value", () -> admin.describeConfigs(List.of(resource)).all().get()
            .get(resource).get("retention.ms").value().equals("123456"));
    }

    static void deleteRecords() throws Exception {
        String name = topic("records", 1);
        TopicPartition at = new TopicPartition(name, 0);
        write(name, WRITTEN);
        long low = admin.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(30)))
            .lowWatermarks().get(at).get().lowWatermark();
        same(low, 30L, "low watermark");
        same(listed(at, OffsetSpec.earliest()), 30L, "earliest offset");
    }

    static void listOffsets() throws Exception {
        String name = topic("list", 1);
        TopicPartition at = new TopicPartition(name, 0);
        long began = System.currentTimeMillis() - 60_000;
        try (KafkaProducer<byte[], byte[]> client = producer()) {
            for (int second : new int[] {0, 3, 1}) {
                long time = began + second * 1000L;
                client.send(new ProducerRecord<>(name, 0, time, null, bytes("v"))).get();
            }
        }
        same(listed(at, OffsetSpec.earliest()), 0L, "earliest");
        same(listed(at, OffsetSpec.latest()), 3L, "latest");
        same(listed(at, OffsetSpec.maxTimestamp()), 1L, "maximal timestamp");
        same(listed(at, OffsetSpec.forTimestamp(began + 500)), 1L, "by time");
    }

    static long listed(TopicPartition at, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(at, spec)).partitionResult(at).get().offset();
    }

    static void groups() throws Exception {
        String name = topic("groups", 1);
        String group = prefix + "-groups";
        TopicPartition at = new TopicPartition(name, 0);
        write(name, WRITTEN);
        try (KafkaConsumer<byte[], byte[]> client = consumer("groups")) {
            client.subscribe(List.of(name));
            same(read(client, 100, 30_000).size(), 100, "records");
            client.commitSync();
            same(groupNames().contains(group), true, "the group is listed");
            var told = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            same(told.groupState().toString(), "Stable", "state");
            same(told.members().size(), 1, "members");
        }
        long committed = admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata().get().get(at).offset();
        same(committed, 100L, "committed offset");
        admin.deleteConsumerGroups(List.of(group)).all().get();
        same(groupNames().contains(group), false, "the group is listed");
    }

    static Set<String> groupNames() throws Exception {
        return admin.listGroups().all().get().stream().map(each -> each.groupId())
            .collect(Collectors.toSet());
    }

    static void deleteGroupOffsets() throws Exception {
        String group = prefix + "-lost";
        TopicPartition zero = new TopicPartition(topic("lost", 2), 0);
        TopicPartition one = new TopicPartition(zero.topic(), 1);
        admin.alterConsumerGroupOffsets(group, Map.of(zero, new OffsetAndMetadata(0),
            one, new OffsetAndMetadata(0))).all().get();
        admin.deleteConsumerGroupOffsets(group, Set.of(zero)).all().get();
        Set<TopicPartition> left = admin.listConsumerGroupOffsets(group)
            .partitionsToOffsetAndMetadata().get().entrySet().stream()
            .filter(entry -> entry.getValue() != null).map(Map.Entry::getKey)
            .collect(Collectors.toSet());
        same(left, Set.of(one), "partitions with an offset");
    }
}
