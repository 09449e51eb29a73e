import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command line tools, one after the other in one JVM.
 *
 * Each line of stdin is {"main": class, "args": [...], "stdin": text}; each line of the answer is
 * {"exit": status, "out": text, "err": text}. A tool that exits ends by an Error instead; one that
 * catches it has still exited, with the status it gave first.
 */
public class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final AtomicReference<Integer> STATUS = new AtomicReference<>();
    /** What the running tool would have done when its JVM ends; the console producer sends then. */
    private static final List<Runnable> HOOKS = new ArrayList<>();

    private static class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    private static void exit(int status, String message) {
        STATUS.compareAndSet(null, status);
        throw new Exited();
    }

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        BufferedReader asked =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Exit.setExitProcedure(Tools::exit);
        Exit.setHaltProcedure(Tools::exit);
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            answers.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);  // some tools leave threads behind
    }

    private static ObjectNode run(JsonNode asked) throws Exception {
        List<String> arguments = new ArrayList<>();
        asked.get("args").forEach(each -> arguments.add(each.asText()));
        byte[] stdin = asked.get("stdin").asText().getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(stdin));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        STATUS.set(null);
        try {
            Class.forName(asked.get("main").asText())
                .getMethod("main", String[].class)
                .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException reason) {
            if (!(reason.getCause() instanceof Exited)) {
                reason.getCause().printStackTrace();
                STATUS.compareAndSet(null, 1);
            }
        }
        STATUS.compareAndSet(null, 0);
        HOOKS.forEach(Runnable::run);
        HOOKS.clear();
        return JSON.createObjectNode()
            .put("exit", STATUS.get())
            .put("out", out.toString(StandardCharsets.UTF_8))
            .put("err", err.toString(StandardCharsets.UTF_8));
    }
}
