import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidPidMappingException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * Copies partitions of the topic "source" to the topic "copies", as tests/cluster/chaos/copier.py does.
 *
 * Arguments: the bootstrap servers, the name of the copier, its partitions ("2,3"), the transaction timeout in ms, a seed. About every
 * sixth transaction is aborted on purpose. As KafkaProducer's documentation says: a timeout of commitTransaction is repeated; a fatal error
 * needs a new producer; after any other one the transaction is aborted and read again from the committed offsets.
 */
public final class Copier {
    private static final int ONE_IN_DOOMED = 6;
    private static final int MAX_ATTEMPTS = 6;
    private static final Duration POLL = Duration.ofMillis(200);

    private final String name;
    private final String servers;
    private final List<TopicPartition> source;
    private final String timeoutMs;
    private final Random random;

    private Copier(String[] args) {
        servers = args[0];
        name = args[1];
        source = Arrays.stream(args[2].split(",")).map(index -> new TopicPartition("source", Integer.parseInt(index))).toList();
        timeoutMs = args[3];
        random = new Random(Long.parseLong(args[4]));
    }

    public static void main(String[] args) {
        Copier copier = new Copier(args);
        while (true) {
            try {
                copier.run();
            } catch (KafkaException problem) {
                System.err.println("a new producer after " + problem);
            }
        }
    }

    private void run() {
        Map<String, Object> consuming = new HashMap<>(Map.of("bootstrap.servers", servers, "group.id", "copier-" + name,
            "isolation.level", "read_committed", "enable.auto.commit", "false", "max.poll.records", "100"));
        Map<String, Object> producing = new HashMap<>(Map.of("bootstrap.servers", servers, "transactional.id", "copier-" + name,
            "transaction.timeout.ms", timeoutMs, "max.block.ms", "10000", "delivery.timeout.ms", "10000", "request.timeout.ms", "5000"));
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer());
             KafkaProducer<String, String> producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer())) {
            consumer.assign(source);
            repeated(producer::initTransactions);
            rewind(consumer);
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(POLL);
                if (!records.isEmpty()) {
                    copy(producer, consumer, records);
                }
            }
        }
    }

    private void copy(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer, ConsumerRecords<String, String> records) {
        boolean isDoomed = random.nextInt(ONE_IN_DOOMED) == 0;
        try {
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                String place = record.partition() + " " + record.offset();
                String value = place + " " + name + " " + (isDoomed ? "doomed" : "kept") + " " + record.value();
                producer.send(new ProducerRecord<>("copies", record.value().split("/")[0], value));
                offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            if (!isDoomed) {
                repeated(producer::commitTransaction);
                return;
            }
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException | InvalidPidMappingException fatal) {
            throw fatal;
        } catch (TimeoutException unknown) {
            throw unknown;
        } catch (KafkaException problem) {
            System.err.println("aborting: " + problem);
        }
        repeated(producer::abortTransaction);
        rewind(consumer);
    }

    private void rewind(KafkaConsumer<String, String> consumer) {
        consumer.committed(java.util.Set.copyOf(source)).forEach((place, offset) -> consumer.seek(place, offset.offset()));
    }

    private static void repeated(Runnable call) {
        for (int attempt = 1; ; attempt++) {
            try {
                call.run();
                return;
            } catch (TimeoutException problem) {
                if (attempt == MAX_ATTEMPTS) {
                    throw problem;
                }
            }
        }
    }
}
