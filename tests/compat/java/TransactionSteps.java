import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

/** Transactions of the Java client 4.x, which uses transaction version 2. */
final class TransactionSteps {
    private TransactionSteps() { }

    static void register(Map<String, Exercise.Step> steps) {
        steps.put("transactions: committed", x -> ended(x, true));
        steps.put("transactions: aborted", x -> ended(x, false));
        steps.put("transactions: an open one blocks readers", TransactionSteps::open);
        steps.put("transactions: a hundred in turn", TransactionSteps::hundred);
        steps.put("transactions: empty ones", TransactionSteps::empty);
        steps.put("transactions: the second of two producers wins", TransactionSteps::fenced);
        steps.put("transactions: with offsets", TransactionSteps::offsets);
        steps.put("transactions: a consumer that lost its group", TransactionSteps::zombieConsumer);
        steps.put("transactions: fenced by an administrator", TransactionSteps::fencedByAdmin);
        steps.put("transactions: aborted by an administrator", TransactionSteps::abortedByAdmin);
        steps.put("transactions: the timeout has a limit", TransactionSteps::timeoutLimit);
        steps.put("transactions: described and listed", TransactionSteps::described);
    }

    private static KafkaProducer<byte[], byte[]> begin(Exercise x, String id) {
        KafkaProducer<byte[], byte[]> producer = x.producer("transactional.id", id);
        producer.initTransactions();
        producer.beginTransaction();
        return producer;
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            producer.send(new ProducerRecord<>(topic, i % 2, 1_700_000_000_000L, null, Exercise.bytes("v" + i)));
        }
        producer.flush();
    }

    private static Object visible(Exercise x, String topic) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        for (IsolationLevel level : IsolationLevel.values()) {
            String name = level.toString();
            saw.put(name + " records", x.readAll(topic, 2, "isolation.level", name).size());
            saw.put(name + " ends", ends(x, topic, level));
        }
        return saw;
    }

    private static Object ends(Exercise x, String topic, IsolationLevel level) throws Exception {
        Map<TopicPartition, OffsetSpec> latest = new java.util.HashMap<>();
        Exercise.partitions(topic, 2).forEach(partition -> latest.put(partition, OffsetSpec.latest()));
        var found = Exercise.get(x.admin.listOffsets(latest, new ListOffsetsOptions(level)).all());
        return Exercise.partitions(topic, 2).stream().map(partition -> found.get(partition).offset()).toList();
    }

    /** Markers are written after EndTxn was answered: wait until readers may pass. */
    private static void untilStable(Exercise x, String topic) {
        Exercise.until("markers on " + topic, () -> Exercise.outcome(() -> ends(x, topic, IsolationLevel.READ_COMMITTED))
            .equals(Exercise.outcome(() -> ends(x, topic, IsolationLevel.READ_UNCOMMITTED))));
    }

    private static Object ended(Exercise x, boolean commit) throws Exception {
        String topic = commit ? "txn-committed" : "txn-aborted";
        x.createTopic(topic, 2);
        try (KafkaProducer<byte[], byte[]> producer = begin(x, topic)) {
            send(producer, topic, 10);
            if (commit) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        untilStable(x, topic);
        return visible(x, topic);
    }

    private static Object open(Exercise x) throws Exception {
        String topic = "txn-open";
        x.createTopic(topic, 2);
        Map<String, Object> saw = new TreeMap<>();
        try (KafkaProducer<byte[], byte[]> producer = begin(x, topic); KafkaProducer<byte[], byte[]> plain = x.producer()) {
            send(producer, topic, 4);
            send(plain, topic, 6);
            saw.put("1 while open", visible(x, topic));
            TransactionDescription description = describe(x, topic);
            saw.put("2 state", description.state());
            saw.put("3 partitions", description.topicPartitions().stream().map(String::valueOf).sorted().toList());
            List<ProducerState> states = Exercise.get(x.admin.describeProducers(List.of(new TopicPartition(topic, 0))).all())
                .get(new TopicPartition(topic, 0)).activeProducers();
            saw.put("4 producers", states.size());
            saw.put("5 open from", states.stream().filter(s -> s.currentTransactionStartOffset().isPresent())
                .map(s -> s.currentTransactionStartOffset().getAsLong()).toList());
            producer.commitTransaction();
            untilStable(x, topic);
            saw.put("6 after commit", visible(x, topic));
        }
        return saw;
    }

    private static TransactionDescription describe(Exercise x, String id) throws Exception {
        return Exercise.get(x.admin.describeTransactions(List.of(id)).all()).get(id);
    }

    private static Object hundred(Exercise x) throws Exception {
        String topic = "txn-hundred";
        x.createTopic(topic, 2);
        try (KafkaProducer<byte[], byte[]> producer = x.producer("transactional.id", topic)) {
            producer.initTransactions();
            for (int i = 0; i < 100; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, i % 2, 1_700_000_000_000L + i, null, Exercise.bytes("v" + i)));
                if (i % 3 == 0) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        untilStable(x, topic);
        return Map.of("seen", visible(x, topic),
            "digest", RecordSteps.digest(x.readAll(topic, 2, "isolation.level", "read_committed")));
    }

    private static Object empty(Exercise x) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = begin(x, "txn-empty")) {
            producer.commitTransaction();
            producer.beginTransaction();
            producer.abortTransaction();
            return describe(x, "txn-empty").state();
        }
    }

    private static Object fenced(Exercise x) throws Exception {
        String topic = "txn-fenced";
        x.createTopic(topic, 2);
        Map<String, Object> saw = new TreeMap<>();
        try (KafkaProducer<byte[], byte[]> first = begin(x, topic)) {
            send(first, topic, 2);
            try (KafkaProducer<byte[], byte[]> second = begin(x, topic)) {
                send(second, topic, 4);
                saw.put("1 first sends", Exercise.outcome(() -> {
                    first.send(new ProducerRecord<>(topic, 0, null, Exercise.bytes("late"))).get();
                    return null;
                }));
                saw.put("2 first commits", Exercise.outcome(() -> {
                    first.commitTransaction();
                    return null;
                }));
                saw.put("3 second commits", Exercise.outcome(() -> {
                    second.commitTransaction();
                    return null;
                }));
            }
        }
        untilStable(x, topic);
        saw.put("4 seen", x.readAll(topic, 2, "isolation.level", "read_committed").size());
        return saw;
    }

    private static Object offsets(Exercise x) throws Exception {
        String topic = "txn-offsets";
        x.createTopic(topic, 2);
        TopicPartition zero = new TopicPartition(topic, 0);
        Map<String, Object> saw = new TreeMap<>();
        ConsumerGroupMetadata group = new ConsumerGroupMetadata(topic);
        try (KafkaProducer<byte[], byte[]> producer = begin(x, topic)) {
            send(producer, topic, 2);
            producer.sendOffsetsToTransaction(Map.of(zero, new OffsetAndMetadata(5, "in it")), group);
            saw.put("1 while open", committed(x, topic, zero));
            producer.commitTransaction();
            Exercise.until("the offset", () -> committed(x, topic, zero).equals("5 in it"));
            saw.put("2 committed", committed(x, topic, zero));
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(zero, new OffsetAndMetadata(9, "never")), group);
            producer.abortTransaction();
            try (KafkaConsumer<byte[], byte[]> consumer = x.consumer("group.id", topic, "isolation.level", "read_committed")) {
                // This one waits until no transaction is pending.
                OffsetAndMetadata stable = consumer.committed(Set.of(zero)).get(zero);
                saw.put("3 after an abort", stable.offset() + " " + stable.metadata());
            }
        }
        return saw;
    }

    private static Object committed(Exercise x, String group, TopicPartition partition) {
        return Exercise.outcome(() -> {
            OffsetAndMetadata found = Exercise.get(
                x.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).get(partition);
            return found == null ? "none" : found.offset() + " " + found.metadata();
        });
    }

    private static Object zombieConsumer(Exercise x) throws Exception {
        String topic = "txn-zombie";
        x.createTopic(topic, 2);
        TopicPartition zero = new TopicPartition(topic, 0);
        Map<String, Object> saw = new TreeMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = x.consumer("group.id", topic)) {
            consumer.subscribe(List.of(topic));
            Exercise.until("an assignment", () -> {
                consumer.poll(Duration.ofMillis(20));
                return !consumer.assignment().isEmpty();
            });
            ConsumerGroupMetadata alive = consumer.groupMetadata();
            saw.put("alive", sendOffsets(x, topic + "-1", zero, alive));
            saw.put("old generation", sendOffsets(x, topic + "-2", zero, new ConsumerGroupMetadata(
                topic, alive.generationId() - 1, alive.memberId(), Optional.empty())));
            saw.put("unknown member", sendOffsets(x, topic + "-3", zero, new ConsumerGroupMetadata(
                topic, alive.generationId(), "nobody", Optional.empty())));
        }
        return saw;
    }

    private static Object sendOffsets(Exercise x, String id, TopicPartition partition, ConsumerGroupMetadata group) {
        try (KafkaProducer<byte[], byte[]> producer = begin(x, id)) {
            Object outcome = Exercise.outcome(() -> {
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1)), group);
                producer.commitTransaction();
                return null;
            });
            if (!outcome.equals("ok")) {
                producer.abortTransaction();
            }
            return outcome;
        }
    }

    private static Object fencedByAdmin(Exercise x) throws Exception {
        String topic = "txn-admin-fence";
        x.createTopic(topic, 2);
        try (KafkaProducer<byte[], byte[]> producer = begin(x, topic)) {
            send(producer, topic, 2);
            Exercise.get(x.admin.fenceProducers(List.of(topic)).all());
            Object outcome = Exercise.outcome(() -> {
                producer.commitTransaction();
                return null;
            });
            untilStable(x, topic);
            return Map.of("commit", outcome, "seen", x.readAll(topic, 2, "isolation.level", "read_committed").size());
        }
    }

    private static Object abortedByAdmin(Exercise x) throws Exception {
        String topic = "txn-admin-abort";
        x.createTopic(topic, 2);
        TopicPartition zero = new TopicPartition(topic, 0);
        try (KafkaProducer<byte[], byte[]> producer = begin(x, topic)) {
            producer.send(new ProducerRecord<>(topic, 0, null, Exercise.bytes("x"))).get();
            ProducerState state = Exercise.get(x.admin.describeProducers(List.of(zero)).all()).get(zero).activeProducers().get(0);
            Object outcome = Exercise.outcome(() -> Exercise.get(x.admin.abortTransaction(new AbortTransactionSpec(
                zero, state.producerId(), (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all()));
            Object ends = ends(x, topic, IsolationLevel.READ_COMMITTED);
            return Map.of("outcome", outcome, "ends", ends);
        }
    }

    private static Object timeoutLimit(Exercise x) {
        try (KafkaProducer<byte[], byte[]> producer =
                 x.producer("transactional.id", "txn-timeout", "transaction.timeout.ms", "1000000")) {
            return Exercise.outcome(() -> {
                producer.initTransactions();
                return null;
            });
        }
    }

    private static Object described(Exercise x) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        Exercise.until("the end of txn-committed", () ->
            Exercise.outcome(() -> describe(x, "txn-committed").state().toString()).equals("CompleteCommit"));
        TransactionDescription description = describe(x, "txn-committed");
        saw.put("state", description.state());
        saw.put("partitions", description.topicPartitions().size());
        saw.put("timeout", description.transactionTimeoutMs());
        saw.put("unknown", Exercise.outcome(() -> describe(x, "txn-nobody")));
        saw.put("listed", Exercise.get(x.admin.listTransactions().all()).stream()
            .filter(listing -> listing.transactionalId().equals("txn-committed"))
            .map(listing -> String.valueOf(listing.state())).toList());
        return saw;
    }
}
