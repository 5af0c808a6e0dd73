import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.utils.Exit;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * One virtual machine that runs many main methods, one after the other.
 *
 * A virtual machine takes a second or two to start, and the tests call dozens of tools. Each line of standard input
 * is {"main": class, "args": [...], "stdin": text}; each line of standard output is {"code", "out", "err"}.
 * Kafka's tools end through Exit, which can be made to throw instead.
 */
public final class ToolHost {
    /** Thrown where a tool would exit. Some catch it and exit again: the first exit code counts. */
    private static final class Ended extends Error {
        private static final long serialVersionUID = 1L;

        Ended() {
            super("ended", null, false, false);
        }
    }

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static volatile Integer firstCode;

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        PrintStream complaints = System.err;
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        Exit.setShutdownHookAdder((name, runnable) -> HOOKS.add(runnable));
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer = run(JSON.readTree(line));
            System.setOut(answers);
            System.setErr(complaints);
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private static void end(int code) {
        if (firstCode == null) {
            firstCode = code;
        }
        throw new Ended();
    }

    private static ObjectNode run(JsonNode request) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        InputStream in = new ByteArrayInputStream(request.path("stdin").asText("").getBytes(StandardCharsets.UTF_8));
        PrintStream outStream = new PrintStream(out, true, StandardCharsets.UTF_8);
        PrintStream errStream = new PrintStream(err, true, StandardCharsets.UTF_8);
        System.setIn(in);
        System.setOut(outStream);
        System.setErr(errStream);
        int code = call(request, errStream);
        // A tool may leave its last work to JVM shutdown, as the console producer does with its last batch.
        HOOKS.forEach(Runnable::run);
        HOOKS.clear();
        outStream.flush();
        errStream.flush();
        return JSON.createObjectNode()
            .put("code", code)
            .put("out", out.toString(StandardCharsets.UTF_8))
            .put("err", err.toString(StandardCharsets.UTF_8));
    }

    private static int call(JsonNode request, PrintStream errStream) {
        String[] arguments = new String[request.path("args").size()];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = request.path("args").get(i).asText();
        }
        firstCode = null;
        try {
            Class.forName(request.path("main").asText()).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return firstCode == null ? 0 : firstCode;
        } catch (InvocationTargetException wrapped) {
            if (firstCode != null) {
                return firstCode;
            }
            wrapped.getCause().printStackTrace(errStream);
            return 1;
        } catch (ReflectiveOperationException absent) {
            absent.printStackTrace(errStream);
            return 2;
        }
    }
}
