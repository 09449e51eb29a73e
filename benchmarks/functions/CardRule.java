import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** The card rule as a Kafka Streams application: a persistent store, two threads, defaults. */
public final class CardRule {
  public static final class Txn {
    public String card;
    public String id;
    public long at;
    public double amount;
  }

  static final class Rule implements Processor<String, byte[], String, byte[]> {
    private final ObjectMapper json = new ObjectMapper();
    private ProcessorContext<String, byte[]> context;
    private KeyValueStore<String, Long> smallAt;

    @Override
    public void init(ProcessorContext<String, byte[]> context) {
      this.context = context;
      this.smallAt = context.getStateStore("risk");
    }

    @Override
    public void process(Record<String, byte[]> record) {
      try {
        Txn e = json.readValue(record.value(), Txn.class);
        Long small = smallAt.get(e.card);
        if (e.amount > 500 && small != null && e.at - small < 60_000) {
          byte[] alert =
              json.writeValueAsBytes(Map.of("card", e.card, "id", e.id, "rule", "small-then-large"));
          context.forward(record.withValue(alert));
        }
        // Our own function and the other peers write their state for every event as well.
        smallAt.put(e.card, e.amount < 1 ? Long.valueOf(e.at) : small == null ? Long.valueOf(0) : small);
      } catch (java.io.IOException problem) {
        throw new IllegalStateException(problem);
      }
    }
  }

  public static void main(String[] args) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[3]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put("auto.offset.reset", "earliest");
    StreamsBuilder builder = new StreamsBuilder();
    builder.addStateStore(
        Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("risk"), Serdes.String(), Serdes.Long()));
    builder
        .stream(args[1], org.apache.kafka.streams.kstream.Consumed.with(Serdes.String(), Serdes.ByteArray()))
        .process(Rule::new, "risk")
        .to(args[2], org.apache.kafka.streams.kstream.Produced.with(Serdes.String(), Serdes.ByteArray()));
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }
}
