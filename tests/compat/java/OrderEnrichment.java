import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * Orders come in, enriched orders go out, each exactly once: consume, transform, produce, and the source offsets in the same
 * transaction.
 *
 * Arguments: the bootstrap servers. One instance after the other works on the same orders under the same transactional id,
 * and each has a different problem: a transformation that fails, a crash in the middle of a transaction, a successor that takes
 * over while it is still running. Prints the result as one line of JSON, without anything that depends on the broker's speed.
 */
public final class OrderEnrichment {
    private static final String ORDERS = "orders";
    private static final String ENRICHED = "enriched-orders";
    private static final String GROUP = "order-enrichment";
    private static final String TRANSACTIONAL_ID = "order-enrichment-v1";
    private static final int PARTITIONS = 2;
    private static final int COUNT = 300;
    private static final long PATIENCE_MS = 60_000;

    /** What an instance does after its transaction with this number was written and before it is committed. */
    private interface Trouble {
        void meet(int transaction) throws Stop;
    }

    /** An instance ends here, as if its process had. */
    private static final class Stop extends Exception {
        private static final long serialVersionUID = 1L;
    }

    private final String bootstrap;
    private final Map<String, Object> saw = new TreeMap<>();

    private OrderEnrichment(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        OrderEnrichment enrichment = new OrderEnrichment(args[0]);
        enrichment.run();
        System.out.println(new ObjectMapper().enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS)
            .writeValueAsString(enrichment.saw));
    }

    private void run() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(ORDERS, PARTITIONS, (short) 1),
                new NewTopic(ENRICHED, PARTITIONS, (short) 1))).all().get();
        }
        placeOrders();
        saw.put("1 crashed", instance(3, transaction -> {
            if (transaction == 2) {
                throw new Stop();
            }
        }));
        saw.put("2 failed once", instance(6, transaction -> {
            if (transaction == 2) {
                throw new KafkaException("the rates were not to be had");
            }
        }));
        saw.put("3 was taken over", instance(Integer.MAX_VALUE, transaction -> {
            if (transaction == 2) {
                takeOver();
            }
        }));
        saw.put("4 finished", instance(Integer.MAX_VALUE, transaction -> { }));
        audit();
    }

    private void placeOrders() {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(Map.of(
                "bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < COUNT; i++) {
                producer.send(new ProducerRecord<>(ORDERS, i % PARTITIONS, "customer-" + i % 10, "order-" + i));
            }
        }
    }

    /** Another instance starts with the same transactional id, and ends again. */
    private void takeOver() {
        try (KafkaProducer<String, String> successor = producer()) {
            successor.initTransactions();
        }
    }

    private KafkaProducer<String, String> producer() {
        return new KafkaProducer<>(Map.of(
            "bootstrap.servers", bootstrap,
            "transactional.id", TRANSACTIONAL_ID,
            "enable.idempotence", "true",
            "transaction.timeout.ms", "30000"), new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(String isolation) {
        return new KafkaConsumer<>(Map.of(
            "bootstrap.servers", bootstrap,
            "group.id", GROUP,
            "isolation.level", isolation,
            "enable.auto.commit", "false",
            "auto.offset.reset", "earliest",
            "max.poll.records", "20",
            "fetch.max.wait.ms", "50"), new StringDeserializer(), new StringDeserializer());
    }

    /** The loop itself: how it ended, after at most so many transactions or when there is nothing more to do. */
    private String instance(int most, Trouble trouble) {
        KafkaProducer<String, String> producer = producer();
        try (KafkaConsumer<String, String> consumer = consumer("read_committed")) {
            consumer.subscribe(List.of(ORDERS));
            producer.initTransactions();
            long idleSince = System.currentTimeMillis();
            for (int transaction = 0; transaction < most;) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    if (done(consumer)) {
                        break;
                    }
                    if (System.currentTimeMillis() - idleSince > PATIENCE_MS) {
                        return "stood still";
                    }
                    continue;
                }
                idleSince = System.currentTimeMillis();
                try {
                    producer.beginTransaction();
                    for (ConsumerRecord<String, String> record : records) {
                        producer.send(new ProducerRecord<>(ENRICHED, record.partition(), record.key(), "enriched " + record.value()));
                    }
                    producer.sendOffsetsToTransaction(offsetsAfter(records), consumer.groupMetadata());
                    trouble.meet(transaction);
                    producer.commitTransaction();
                } catch (ProducerFencedException | OutOfOrderSequenceException fatal) {
                    // A newer instance has taken over: this one must not write any more.
                    return fatal.getClass().getSimpleName();
                } catch (KafkaException abortable) {
                    producer.abortTransaction();
                    rewind(consumer);
                }
                transaction++;
            }
            return "ended";
        } catch (Stop stop) {
            return "stopped";
        } finally {
            // Without waiting, as a process dies: an open transaction is left to its successor.
            producer.close(Duration.ZERO);
        }
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsetsAfter(ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        return offsets;
    }

    /** After an abort the records must be read again: back to what is committed. */
    private static void rewind(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata found = committed.get(partition);
            if (found == null) {
                consumer.seekToBeginning(Set.of(partition));
            } else {
                consumer.seek(partition, found);
            }
        }
    }

    private static boolean done(KafkaConsumer<String, String> consumer) {
        return at(consumer.endOffsets(consumer.assignment()), consumer);
    }

    private static boolean at(Map<TopicPartition, Long> ends, KafkaConsumer<String, String> consumer) {
        return !ends.isEmpty() && ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
    }

    private void audit() {
        List<ConsumerRecord<String, String>> committed = readAll("read_committed");
        List<String> values = committed.stream().map(ConsumerRecord::value).toList();
        saw.put("5 enriched", values.size());
        saw.put("6 different", Set.copyOf(values).size());
        saw.put("7 in order", inOrder(committed));
        saw.put("8 aborted ones are there", readAll("read_uncommitted").size() > values.size());
        try (KafkaConsumer<String, String> consumer = consumer("read_committed")) {
            List<TopicPartition> sources = partitions(ORDERS);
            Map<TopicPartition, OffsetAndMetadata> offsets = consumer.committed(Set.copyOf(sources));
            saw.put("9 offsets", sources.stream().map(source -> offsets.get(source).offset()).toList());
        }
    }

    private static boolean inOrder(List<ConsumerRecord<String, String>> records) {
        Map<Integer, List<Integer>> numbers = records.stream().collect(Collectors.groupingBy(ConsumerRecord::partition,
            Collectors.mapping(record -> Integer.valueOf(record.value().substring("enriched order-".length())), Collectors.toList())));
        return numbers.values().stream().allMatch(list -> list.stream().sorted().toList().equals(list));
    }

    private List<ConsumerRecord<String, String>> readAll(String isolation) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(isolation)) {
            consumer.assign(partitions(ENRICHED));
            consumer.seekToBeginning(partitions(ENRICHED));
            Map<TopicPartition, Long> ends = ends();
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (!at(ends, consumer) && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(50)).forEach(records::add);
            }
        }
        return records;
    }

    /** Where the logs end, even if markers are missing: a read_committed end may lie before the last commit. */
    private Map<TopicPartition, Long> ends() {
        try (KafkaConsumer<String, String> consumer = consumer("read_uncommitted")) {
            return consumer.endOffsets(partitions(ENRICHED));
        }
    }

    private static List<TopicPartition> partitions(String topic) {
        return List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
    }
}
