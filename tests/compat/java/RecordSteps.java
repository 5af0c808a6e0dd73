import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;

/** Produce and consume: every codec, odd records, big records, offsets, times. */
final class RecordSteps {
    private static final long SOME_TIME = 1_700_000_000_000L;

    private RecordSteps() { }

    static void register(Map<String, Exercise.Step> steps) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            steps.put("records: codec " + codec, x -> codec(x, codec));
        }
        for (String acks : List.of("0", "1", "all")) {
            steps.put("records: acks " + acks, x -> acks(x, acks));
        }
        steps.put("records: a million bytes", RecordSteps::megabyte);
        steps.put("records: too large", RecordSteps::tooLarge);
        steps.put("records: a write creates its topic", RecordSteps::autoCreate);
        steps.put("records: append time", RecordSteps::appendTime);
        steps.put("records: timestamps too far off", RecordSteps::timesTooFarOff);
        steps.put("records: a compacted topic requires keys", RecordSteps::compactedKeys);
        steps.put("records: the topic chooses the codec", RecordSteps::topicCodec);
        steps.put("records: offsets by time", RecordSteps::offsetsByTime);
        steps.put("records: deleted up to an offset", RecordSteps::deleteRecords);
        steps.put("records: a position out of range", RecordSteps::outOfRange);
        steps.put("records: small fetches", RecordSteps::smallFetches);
        steps.put("records: a long poll ends when records come", RecordSteps::longPoll);
    }

    private static List<ProducerRecord<byte[], byte[]>> oddRecords(String topic) {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            byte[] key = i % 3 == 0 ? null : Exercise.bytes("key-" + i);
            byte[] value = i % 5 == 0 ? null : Exercise.bytes("value-".repeat(i % 40) + i);
            List<Header> headers = new ArrayList<>();
            for (int h = 0; h < i % 4; h++) {
                headers.add(new RecordHeader("header-" + h, h == 2 ? null : Exercise.bytes("é" + i)));
            }
            records.add(new ProducerRecord<>(topic, i % 3, SOME_TIME + i, key, value, headers));
        }
        return records;
    }

    private static Object codec(Exercise x, String codec) throws Exception {
        String topic = "records-" + codec;
        x.createTopic(topic, 3);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = x.producer("compression.type", codec, "linger.ms", "10")) {
            oddRecords(topic).forEach(record -> sent.add(producer.send(record)));
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get().offset());
        }
        List<ConsumerRecord<byte[], byte[]>> got = x.readAll(topic, 3);
        return Map.of("offsets", offsets, "records", got.size(), "digest", digest(got));
    }

    /** One number for everything a consumer can see of some records. */
    static String digest(List<ConsumerRecord<byte[], byte[]>> records) throws Exception {
        List<String> lines = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            lines.add(record.partition() + "/" + String.format("%09d", record.offset()) + " " + record.timestamp() + " "
                + record.timestampType() + " " + Arrays.toString(record.key()) + Arrays.toString(record.value())
                + Arrays.stream(record.headers().toArray()).map(h -> h.key() + Arrays.toString(h.value())).toList());
        }
        lines.sort(String::compareTo);
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(Exercise.bytes(String.join("\n", lines)));
        return HexFormat.of().formatHex(hash, 0, 8);
    }

    private static Object acks(Exercise x, String acks) throws Exception {
        String topic = "records-acks-" + acks;
        x.createTopic(topic, 1);
        RecordMetadata last;
        try (KafkaProducer<byte[], byte[]> producer =
                 x.producer("acks", acks, "enable.idempotence", acks.equals("all") ? "true" : "false")) {
            for (int i = 0; i < 49; i++) {
                producer.send(new ProducerRecord<>(topic, 0, SOME_TIME, null, Exercise.bytes("v" + i)));
            }
            last = producer.send(new ProducerRecord<>(topic, 0, SOME_TIME, null, Exercise.bytes("v49"))).get();
            producer.flush();
        }
        // With acks=0 the broker does not report when the last record has arrived.
        Exercise.until("fifty records", () -> x.readAll(topic, 1).size() == 50);
        return Map.of("last offset", last.hasOffset() ? last.offset() : -1, "digest", digest(x.readAll(topic, 1)));
    }

    private static Object megabyte(Exercise x) throws Exception {
        x.createTopic("records-large", 1);
        byte[] value = new byte[1_000_000];
        new java.util.Random(1).nextBytes(value);
        try (KafkaProducer<byte[], byte[]> producer = x.producer()) {
            for (int i = 0; i < 3; i++) {
                producer.send(new ProducerRecord<>("records-large", 0, SOME_TIME, null, value)).get();
            }
        }
        return digest(x.readAll("records-large", 1));
    }

    private static Object tooLarge(Exercise x) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = x.producer("max.request.size", "5000000", "batch.size", "10")) {
            return Map.of(
                "1048588 in all", Exercise.outcome(() -> {
                    // 61 bytes of header, 12 before its length field ends, and the record's own few.
                    producer.send(new ProducerRecord<>("records-large", 0, SOME_TIME, null, new byte[1_048_588 - 100])).get();
                    return null;
                }),
                "more", Exercise.outcome(() -> {
                    producer.send(new ProducerRecord<>("records-large", 0, SOME_TIME, null, new byte[1_048_588])).get();
                    return null;
                }));
        }
    }

    private static Object autoCreate(Exercise x) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = x.producer()) {
            RecordMetadata metadata = producer.send(new ProducerRecord<>("records-born", Exercise.bytes("x"))).get();
            return Map.of("offset", metadata.offset(), "partition", metadata.partition());
        }
    }

    private static Object appendTime(Exercise x) throws Exception {
        x.createTopic("records-append-time", 1, "message.timestamp.type", "LogAppendTime");
        long before = System.currentTimeMillis();
        RecordMetadata metadata;
        try (KafkaProducer<byte[], byte[]> producer = x.producer("compression.type", "zstd")) {
            metadata = producer.send(new ProducerRecord<>("records-append-time", 0, SOME_TIME, null, Exercise.bytes("x"))).get();
        }
        ConsumerRecord<byte[], byte[]> record = x.readAll("records-append-time", 1).get(0);
        return Map.of(
            "type", record.timestampType().toString(),
            "read", record.timestamp() >= before - 1000,
            "answered", metadata.timestamp() == record.timestamp());
    }

    private static Object timesTooFarOff(Exercise x) throws Exception {
        x.createTopic("records-bounds", 1, "message.timestamp.before.max.ms", "3600000");
        long now = System.currentTimeMillis();
        Map<String, Object> saw = new TreeMap<>();
        try (KafkaProducer<byte[], byte[]> producer = x.producer()) {
            Map.of("now", now, "two hours ahead", now + 7_200_000, "two hours ago", now - 7_200_000).forEach((name, time) ->
                saw.put(name, Exercise.outcome(() -> {
                    producer.send(new ProducerRecord<>("records-bounds", 0, time, null, Exercise.bytes("x"))).get();
                    return null;
                })));
        }
        return saw;
    }

    private static Object compactedKeys(Exercise x) throws Exception {
        x.createTopic("records-compacted", 1, "cleanup.policy", "compact");
        Map<String, Object> saw = new TreeMap<>();
        for (String codec : List.of("none", "gzip")) {
            try (KafkaProducer<byte[], byte[]> producer = x.producer("compression.type", codec)) {
                saw.put("no key " + codec, Exercise.outcome(() -> {
                    producer.send(new ProducerRecord<>("records-compacted", 0, null, Exercise.bytes("x"))).get();
                    return null;
                }));
                saw.put("with key " + codec, Exercise.outcome(() -> {
                    producer.send(new ProducerRecord<>("records-compacted", 0, Exercise.bytes("k"), null)).get();
                    return null;
                }));
            }
        }
        return saw;
    }

    private static Object topicCodec(Exercise x) throws Exception {
        x.createTopic("records-recoded", 3, "compression.type", "gzip");
        try (KafkaProducer<byte[], byte[]> producer = x.producer("compression.type", "lz4", "linger.ms", "10")) {
            oddRecords("records-recoded").forEach(producer::send);
        }
        return digest(x.readAll("records-recoded", 3));
    }

    private static Object offsetsByTime(Exercise x) throws Exception {
        x.createTopic("records-times", 1);
        TopicPartition partition = new TopicPartition("records-times", 0);
        Map<String, Object> saw = new TreeMap<>();
        saw.put("max timestamp of nothing", listOffset(x, partition, OffsetSpec.maxTimestamp()));
        saw.put("time in nothing", listOffset(x, partition, OffsetSpec.forTimestamp(5)));
        try (KafkaProducer<byte[], byte[]> producer = x.producer("batch.size", "1")) {
            // The times are not in order: the greatest is at offset 3.
            for (long time : new long[] {100, 300, 200, 900, 500, 600}) {
                producer.send(new ProducerRecord<>("records-times", 0, SOME_TIME + time, null, Exercise.bytes("x"))).get();
            }
        }
        saw.put("earliest", listOffset(x, partition, OffsetSpec.earliest()));
        saw.put("latest", listOffset(x, partition, OffsetSpec.latest()));
        saw.put("max timestamp", listOffset(x, partition, OffsetSpec.maxTimestamp()));
        for (long time : new long[] {0, 100, 101, 301, 900, 901}) {
            saw.put(String.format("time %03d", time), listOffset(x, partition, OffsetSpec.forTimestamp(SOME_TIME + time)));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = x.consumer()) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, SOME_TIME + 150)).get(partition);
            saw.put("by the consumer", found.offset() + " at " + (found.timestamp() - SOME_TIME));
            saw.put("beyond, by the consumer",
                String.valueOf(consumer.offsetsForTimes(Map.of(partition, SOME_TIME + 1000)).get(partition)));
        }
        saw.put("unknown partition", Exercise.outcome(() -> Exercise.get(x.admin.listOffsets(
            Map.of(new TopicPartition("records-times", 7), OffsetSpec.latest()),
            new ListOffsetsOptions(IsolationLevel.READ_UNCOMMITTED).timeoutMs(2000)).all())));
        return saw;
    }

    private static Object listOffset(Exercise x, TopicPartition partition, OffsetSpec spec) {
        return Exercise.outcome(() -> {
            var info = Exercise.get(x.admin.listOffsets(Map.of(partition, spec)).all()).get(partition);
            long time = info.timestamp() > 0 ? info.timestamp() - SOME_TIME : info.timestamp();
            return info.offset() + " at " + time + " epoch " + info.leaderEpoch().map(String::valueOf).orElse("none");
        });
    }

    private static Object deleteRecords(Exercise x) throws Exception {
        x.createTopic("records-deleted", 1);
        TopicPartition partition = new TopicPartition("records-deleted", 0);
        try (KafkaProducer<byte[], byte[]> producer = x.producer()) {
            for (int i = 0; i < 20; i++) {
                producer.send(new ProducerRecord<>("records-deleted", 0, SOME_TIME, null, Exercise.bytes("v" + i)));
            }
        }
        Map<String, Object> saw = new TreeMap<>();
        saw.put("1 before ten", deleteBefore(x, partition, 10));
        saw.put("2 before five", deleteBefore(x, partition, 5));
        saw.put("3 beyond the end", deleteBefore(x, partition, 21));
        saw.put("4 earliest", listOffset(x, partition, OffsetSpec.earliest()));
        saw.put("5 read", x.readAll("records-deleted", 1).stream().map(record -> record.offset()).toList());
        saw.put("6 all", deleteBefore(x, partition, -1));
        saw.put("7 earliest", listOffset(x, partition, OffsetSpec.earliest()));
        saw.put("8 unknown topic", deleteBefore(x, new TopicPartition("records-nowhere", 0), 1));
        return saw;
    }

    private static Object deleteBefore(Exercise x, TopicPartition partition, long offset) {
        var wanted = Map.of(partition, RecordsToDelete.beforeOffset(offset));
        var options = new org.apache.kafka.clients.admin.DeleteRecordsOptions().timeoutMs(3000);
        return Exercise.outcome(() ->
            Exercise.get(x.admin.deleteRecords(wanted, options).lowWatermarks().get(partition)).lowWatermark());
    }

    private static Object outOfRange(Exercise x) throws Exception {
        TopicPartition partition = new TopicPartition("records-times", 0);
        Map<String, Object> saw = new TreeMap<>();
        for (String reset : List.of("earliest", "latest", "none")) {
            try (KafkaConsumer<byte[], byte[]> consumer = x.consumer("auto.offset.reset", reset)) {
                consumer.assign(List.of(partition));
                consumer.seek(partition, 1000);
                // The poll that resets the position may also return records, which move it on.
                int[] read = {0};
                saw.put(reset, Exercise.outcome(() -> {
                    Exercise.until("a reset", () -> {
                        read[0] += consumer.poll(Duration.ofMillis(100)).count();
                        return consumer.position(partition) != 1000;
                    });
                    return consumer.position(partition) - read[0];
                }));
            }
        }
        return saw;
    }

    private static Object smallFetches(Exercise x) throws Exception {
        // The first batch of a fetch is returned whole, even if it is larger than the limit.
        return digest(x.readAll("records-large", 1, "max.partition.fetch.bytes", "100", "fetch.max.bytes", "100"));
    }

    private static Object longPoll(Exercise x) throws Exception {
        x.createTopic("records-awaited", 1);
        TopicPartition partition = new TopicPartition("records-awaited", 0);
        KafkaConsumer<byte[], byte[]> consumer = x.consumer("fetch.max.wait.ms", "30000", "request.timeout.ms", "40000");
        try (KafkaProducer<byte[], byte[]> producer = x.producer()) {
            consumer.assign(List.of(partition));
            consumer.poll(Duration.ofMillis(200));
            producer.send(new ProducerRecord<>("records-awaited", 0, null, Exercise.bytes("now"))).get();
            long started = System.nanoTime();
            List<String> got = new ArrayList<>();
            Exercise.until("the record", () -> {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> got.add(new String(record.value())));
                return !got.isEmpty();
            });
            return Map.of("got", got, "before the wait was over", (System.nanoTime() - started) / 1_000_000 < 20_000);
        } finally {
            // It is already waiting for the next records, and would wait half a minute more.
            consumer.close(CloseOptions.timeout(Duration.ZERO));
        }
    }
}
