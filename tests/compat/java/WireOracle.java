import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/**
 * How Kafka's own message classes read some bytes.
 *
 * Each line of standard input is "apiKey version request|response hex" (the body, without header). Each line of output
 * is {"json": what was read, "hex": the same written again, "left": bytes not read} or {"error": why not}. With the
 * argument "versions" it prints the valid version range of every api instead.
 */
public final class WireOracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        if (args.length > 0 && args[0].equals("versions")) {
            printVersions();
            return;
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (!line.isBlank()) {
                System.out.println(JSON.writeValueAsString(answer(line.split(" ", -1))));
            }
        }
    }

    private static void printVersions() throws Exception {
        for (ApiMessageType api : ApiMessageType.values()) {
            ObjectNode shown = JSON.createObjectNode()
                .put("key", api.apiKey())
                .put("name", api.name)
                .put("lowest", api.lowestSupportedVersion())
                .put("highest", api.highestSupportedVersion(false))
                .put("highestUnstable", api.highestSupportedVersion(true));
            ObjectNode headers = shown.putObject("requestHeaders");
            ObjectNode replies = shown.putObject("responseHeaders");
            for (short v = api.lowestSupportedVersion(); v <= api.highestSupportedVersion(true); v++) {
                headers.put(Short.toString(v), api.requestHeaderVersion(v));
                replies.put(Short.toString(v), api.responseHeaderVersion(v));
            }
            System.out.println(JSON.writeValueAsString(shown));
        }
    }

    private static ObjectNode answer(String[] words) {
        try {
            ApiMessageType api = ApiMessageType.fromApiKey(Short.parseShort(words[0]));
            short version = Short.parseShort(words[1]);
            ApiMessage message = words[2].equals("request") ? api.newRequest() : api.newResponse();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[3]));
            message.read(new ByteBufferAccessor(bytes), version);
            ByteBuffer again = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] written = new byte[again.remaining()];
            again.get(written);
            return JSON.createObjectNode()
                .put("hex", HexFormat.of().formatHex(written))
                .put("left", bytes.remaining())
                .set("json", toJson(message, version));
        } catch (Exception failure) {
            return JSON.createObjectNode().put("error", failure.toString());
        }
    }

    private static JsonNode toJson(ApiMessage message, short version) throws ReflectiveOperationException {
        Class<?> converter = Class.forName(message.getClass().getName() + "JsonConverter");
        return (JsonNode) converter
            .getMethod("write", message.getClass(), short.class, boolean.class)
            .invoke(null, message, version, false);
    }
}
