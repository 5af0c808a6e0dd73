import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import java.io.FileReader;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

/**
 * What the Java producer raises if it may not: one transaction, up to the call that fails.
 *
 * Arguments: a properties file of the client, one of an administrator, the name of topic, transactional id and group, and
 * the type of the resource whose ACLs are removed after the first record, or NONE. Prints one line per exception; of one
 * that is wrapped in a KafkaException, which depends on the moment, the cause. With the
 * name "idempotent TOPIC" the producer has no transactional id.
 */
public final class Denials {
    private Denials() { }

    public static void main(String[] args) throws Exception {
        Properties settings = read(args[0]);
        String name = args[2];
        boolean isIdempotent = name.startsWith("idempotent ");
        String topic = isIdempotent ? name.substring("idempotent ".length()) : name;
        if (!isIdempotent) {
            settings.put("transactional.id", name);
        }
        settings.put("max.block.ms", "10000");
        ByteArraySerializer bytes = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes);
        String call = "initTransactions";
        try {
            if (isIdempotent) {
                isSent(producer, topic);
                return;
            }
            producer.initTransactions();
            producer.beginTransaction();
            call = "sendOffsetsToTransaction";
            boolean isSent = isSent(producer, topic);
            if (!args[3].equals("NONE")) {
                takeAway(args[1], name, ResourceType.valueOf(args[3]));
                isSent = isSent(producer, topic);
            }
            if (!isSent) {
                abort(producer);
                return;
            }
            producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1)), new ConsumerGroupMetadata(name));
            call = "commitTransaction";
            producer.commitTransaction();
            System.out.println("committed");
        } catch (KafkaException problem) {
            print(call, problem);
            abort(producer);
        } finally {
            producer.close(java.time.Duration.ZERO);
        }
    }

    private static Properties read(String path) throws Exception {
        Properties settings = new Properties();
        try (FileReader reader = new FileReader(path)) {
            settings.load(reader);
        }
        return settings;
    }

    private static boolean isSent(KafkaProducer<byte[], byte[]> producer, String topic) throws InterruptedException {
        Future<RecordMetadata> sent = producer.send(new ProducerRecord<>(topic, new byte[1]));
        producer.flush();
        try {
            sent.get();
            return true;
        } catch (ExecutionException problem) {
            print("send", problem.getCause());
            return false;
        }
    }

    private static void takeAway(String properties, String name, ResourceType type) throws Exception {
        try (Admin admin = Admin.create(read(properties))) {
            admin.deleteAcls(List.of(new AclBindingFilter(
                new ResourcePatternFilter(type, name, PatternType.LITERAL),
                new AccessControlEntryFilter(null, null, AclOperation.WRITE, AclPermissionType.ANY)))).all().get();
        }
    }

    private static void abort(KafkaProducer<byte[], byte[]> producer) {
        try {
            producer.abortTransaction();
            System.out.println("aborted");
        } catch (KafkaException | IllegalStateException problem) {
            print("abortTransaction", problem);
        }
    }

    private static void print(String call, Throwable problem) {
        boolean isWrapped = problem.getClass() == KafkaException.class && problem.getCause() != null;
        Throwable shown = isWrapped ? problem.getCause() : problem;
        System.out.println(call + ": " + shown.getClass().getSimpleName());
    }
}
