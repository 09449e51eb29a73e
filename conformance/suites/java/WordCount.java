import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Words of lines, counted exactly once: a repartition topic, a store with a changelog, two threads.
 * No count is held back in a cache, so a word's counts in the output are 1, 2, 3 and so on.
 * Arguments: a file of how the broker is reached, input, output, application id, folder of the
 * state.
 */
public final class WordCount {
  public static void main(String[] args) throws IOException {
    Properties settings = new Properties();
    try (Reader client = Files.newBufferedReader(Path.of(args[0]))) {
      settings.load(client);
    }
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[3]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    settings.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 2_000);
    settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6_000);
    settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 1_000);

    StreamsBuilder builder = new StreamsBuilder();
    builder
        .stream(args[1], Consumed.with(Serdes.String(), Serdes.String()))
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
        .count(
            Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long()))
        .toStream()
        .mapValues(count -> Long.toString(count))
        .to(args[2], Produced.with(Serdes.String(), Serdes.String()));

    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setStateListener((now, before) -> tell("state", now.toString()));
    streams.setUncaughtExceptionHandler(
        problem -> {
          tell("died", problem.toString());
          problem.printStackTrace();
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
    streams.start();
  }

  private static void tell(String name, String what) {
    String plain = what.replaceAll("[\\\\\"\\p{Cntrl}]", " ");
    System.out.println("{\"name\": \"" + name + "\", \"what\": \"" + plain + "\"}");
  }
}
