import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * A Java client exercises a broker, step by step, and reports what it saw.
 *
 * Arguments: the bootstrap servers, then any number of words; a step runs when its name starts with one of them, and all
 * run when there is none. Each step prints one line, {"step", "saw", "ms"} or {"step", "raised", "ms"}. What a step saw holds
 * nothing that differs between two healthy brokers: no ids, no times, no ports. So two transcripts can be compared.
 */
public final class Exercise {
    static final long PATIENCE_MS = 60_000;

    interface Step {
        Object run(Exercise exercise) throws Exception;
    }

    interface Try {
        Object run() throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper().enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS);

    final String bootstrap;
    final Admin admin;

    private Exercise(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", "60000"));
    }

    public static void main(String[] args) throws Exception {
        Map<String, Step> steps = new LinkedHashMap<>();
        AdminSteps.register(steps);
        RecordSteps.register(steps);
        GroupSteps.register(steps);
        TransactionSteps.register(steps);
        if (args.length == 0) {
            steps.keySet().forEach(System.out::println);
            return;
        }
        List<String> wanted = Arrays.asList(args).subList(1, args.length);
        Exercise exercise = new Exercise(args[0]);
        for (Map.Entry<String, Step> step : steps.entrySet()) {
            if (wanted.isEmpty() || wanted.stream().anyMatch(step.getKey()::startsWith)) {
                System.out.println(JSON.writeValueAsString(exercise.line(step.getKey(), step.getValue())));
            }
        }
        exercise.admin.close(Duration.ofSeconds(5));
    }

    private Map<String, Object> line(String name, Step step) {
        Map<String, Object> line = new LinkedHashMap<>();
        long started = System.nanoTime();
        line.put("step", name);
        try {
            line.put("saw", step.run(this));
        } catch (Exception failure) {
            line.put("raised", name(failure));
            line.put("message", String.valueOf(failure.getMessage()));
            line.put("trace", Arrays.stream(failure.getStackTrace()).limit(12).map(String::valueOf).toList());
        }
        line.put("ms", (System.nanoTime() - started) / 1_000_000);
        return line;
    }

    /** The name of the error, without the wrapping of futures. */
    static String name(Throwable failure) {
        Throwable cause = failure instanceof ExecutionException && failure.getCause() != null ? failure.getCause() : failure;
        return cause.getClass().getSimpleName();
    }

    /** The outcome of an attempt: its value, or the name of its exception. */
    static Object outcome(Try attempt) {
        try {
            Object value = attempt.run();
            return value == null ? "ok" : value;
        } catch (Exception failure) {
            return name(failure);
        }
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    }

    static void until(String what, BooleanSupplier holds) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!holds.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("never came: " + what);
            }
        }
    }

    KafkaProducer<byte[], byte[]> producer(String... settings) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("delivery.timeout.ms", "60000");
        config.putAll(pairs(settings));
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(String... settings) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        // A consumer that closes waits for its last fetch.
        config.put("fetch.max.wait.ms", "50");
        config.put("session.timeout.ms", "10000");
        config.put("heartbeat.interval.ms", "300");
        config.putAll(pairs(settings));
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Map<String, Object> pairs(String[] settings) {
        Map<String, Object> config = new HashMap<>();
        for (int i = 0; i < settings.length; i += 2) {
            config.put(settings[i], settings[i + 1]);
        }
        return config;
    }

    void createTopic(String name, int partitions, String... settings) throws Exception {
        Map<String, String> config = pairs(settings).entrySet().stream()
            .collect(Collectors.toMap(Map.Entry::getKey, entry -> (String) entry.getValue()));
        // Records have fixed timestamps, long past: retention would delete them during the test.
        config.putIfAbsent("retention.ms", "-1");
        get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(config))).all());
        // Apache Kafka answers before the partitions have a leader. A write at once may be lost: the first batch of an
        // idempotent producer is refused, a later one accepted, and then the first is out of order until it expires (47 of
        // 1,000 times here; never if every partition had answered first).
        Map<TopicPartition, OffsetSpec> latest = partitions(name, partitions).stream()
            .collect(Collectors.toMap(partition -> partition, partition -> OffsetSpec.latest()));
        until("leaders of " + name, () -> outcome(() -> get(admin.listOffsets(latest).all()).size()).equals(partitions));
    }

    static List<TopicPartition> partitions(String topic, int count) {
        return IntStream.range(0, count).mapToObj(i -> new TopicPartition(topic, i)).toList();
    }

    /** All records up to the current end offsets, in the order of each partition. */
    List<ConsumerRecord<byte[], byte[]>> readAll(String topic, int count, String... settings) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            List<TopicPartition> partitions = partitions(topic, count);
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            until("the end of " + topic, () -> {
                consumer.poll(Duration.ofMillis(50)).forEach(records::add);
                return partitions.stream().allMatch(partition -> consumer.position(partition) >= ends.get(partition));
            });
        }
        return records;
    }

    static byte[] bytes(String text) {
        return text.getBytes(java.nio.charset.StandardCharsets.UTF_8);
    }
}
