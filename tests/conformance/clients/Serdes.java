import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;

/** Prints an event as Apicurio's serializer writes it to the topic `payments`, or reads one. */
public class Serdes {
    public static void main(String[] args) {
        Map<String, Object> config = Map.of(
            "apicurio.registry.url", args[1], "apicurio.registry.auto-register", true);
        if (args[0].equals("write")) {
            Schema schema = new Schema.Parser().parse(args[2]);
            GenericRecord record = new GenericData.Record(schema);
            record.put("card", "c1");
            record.put("at", 5L);
            try (var serializer = new AvroKafkaSerializer<GenericRecord>()) {
                serializer.configure(config, false);
                System.out.println(HexFormat.of().formatHex(serializer.serialize("payments", record)));
            }
        } else {
            try (var deserializer = new AvroKafkaDeserializer<GenericRecord>()) {
                deserializer.configure(config, false);
                System.out.println(deserializer.deserialize("payments", HexFormat.of().parseHex(args[2])));
            }
        }
        System.exit(0);
    }
}
