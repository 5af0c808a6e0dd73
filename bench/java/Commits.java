import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Commits transactions for some seconds with Kafka's own client and prints the milliseconds of each commit, one per line.
 *
 * Arguments: bootstrap servers, topic, producers (a thread each), records per transaction, bytes per record, seconds of
 * warm-up, seconds that count. The first line is the time that counted, in milliseconds.
 */
public final class Commits {
    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String topic = arguments[1];
        int producers = Integer.parseInt(arguments[2]);
        int records = Integer.parseInt(arguments[3]);
        byte[] value = new byte[Integer.parseInt(arguments[4])];
        new Random(1).nextBytes(value);
        List<KafkaProducer<byte[], byte[]>> clients = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            clients.add(producer(servers, name(number)));
        }
        long counted = System.nanoTime() + seconds(arguments[5]);
        long end = counted + seconds(arguments[6]);
        ExecutorService threads = Executors.newFixedThreadPool(producers);
        List<Future<List<Double>>> results = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            KafkaProducer<byte[], byte[]> client = clients.get(number);
            String name = name(number);
            results.add(threads.submit(() -> commit(client, servers, name, topic, records, value, counted, end)));
        }
        StringBuilder out = new StringBuilder();
        out.append((end - counted) / 1e6).append('\n');
        try {
            for (Future<List<Double>> result : results) {
                for (double milliseconds : result.get()) {
                    out.append(milliseconds).append('\n');
                }
            }
        } finally {
            threads.shutdownNow(); // Also after an error: as long as one of them lives, so does the process.
        }
        System.out.print(out);
    }

    private static String name(int number) {
        return "java-" + number;
    }

    private static long seconds(String text) {
        return (long) (Double.parseDouble(text) * 1e9);
    }

    private static KafkaProducer<byte[], byte[]> producer(String servers, String name) {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "transactional.id", name);
        ByteArraySerializer bytes = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes);
        producer.initTransactions();
        return producer;
    }

    /**
     * Commits until the end. Now and then the client sends EndTxn without the record and fails with INVALID_TXN_STATE, on
     * either broker; as an application would, we then go on with a new producer, and the time that it takes counts.
     */
    private static List<Double> commit(
            KafkaProducer<byte[], byte[]> producer,
            String servers,
            String name,
            String topic,
            int records,
            byte[] value,
            long counted,
            long end) {
        List<Double> commits = new ArrayList<>();
        while (System.nanoTime() < end) {
            try {
                producer.beginTransaction();
                for (int number = 0; number < records; number++) {
                    producer.send(new ProducerRecord<>(topic, value));
                }
                long started = System.nanoTime();
                producer.commitTransaction();
                long done = System.nanoTime();
                if (started >= counted && done < end) {
                    commits.add((done - started) / 1e6);
                }
            } catch (InvalidTxnStateException problem) {
                producer.close(Duration.ZERO);
                producer = producer(servers, name);
            }
        }
        producer.close();
        return commits;
    }
}
