import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;

/** Topics, partitions, configs: what an administrator does. */
final class AdminSteps {
    private static final List<String> SHOWN_TOPIC_CONFIGS = List.of(
        "cleanup.policy", "compression.type", "delete.retention.ms", "file.delete.delay.ms", "flush.messages", "flush.ms",
        "index.interval.bytes", "max.compaction.lag.ms", "max.message.bytes", "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms", "message.timestamp.type", "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms", "min.insync.replicas", "preallocate", "retention.bytes", "retention.ms",
        "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms", "unclean.leader.election.enable");

    private AdminSteps() { }

    static void register(Map<String, Exercise.Step> steps) {
        steps.put("admin: the cluster", AdminSteps::cluster);
        steps.put("admin: the features", AdminSteps::features);
        steps.put("admin: topics are created", AdminSteps::create);
        steps.put("admin: topics are refused", AdminSteps::refuse);
        steps.put("admin: topics are described", AdminSteps::describe);
        steps.put("admin: topics are listed", AdminSteps::list);
        steps.put("admin: partitions are added", AdminSteps::addPartitions);
        steps.put("admin: topic configs are described", AdminSteps::describeConfigs);
        steps.put("admin: topic configs are altered", AdminSteps::alterConfigs);
        steps.put("admin: broker configs are described", AdminSteps::brokerConfigs);
        steps.put("admin: log dirs are described", AdminSteps::logDirs);
        steps.put("admin: topics are deleted", AdminSteps::delete);
        steps.put("admin: a thousand partitions", AdminSteps::thousandPartitions);
    }

    private static Object cluster(Exercise x) throws Exception {
        var result = x.admin.describeCluster();
        return Map.of(
            "nodes", Exercise.get(result.nodes()).size(),
            "hasController", Exercise.get(result.controller()) != null,
            "clusterIdLength", Exercise.get(result.clusterId()).length());
    }

    private static Object features(Exercise x) throws Exception {
        var features = Exercise.get(x.admin.describeFeatures().featureMetadata());
        var finalized = features.finalizedFeatures().get("transaction.version");
        return Map.of(
            "transaction.version", finalized == null ? "none" : finalized.maxVersionLevel(),
            "hasEpoch", features.finalizedFeaturesEpoch().isPresent());
    }

    private static Object create(Exercise x) throws Exception {
        NewTopic plain = new NewTopic("admin-plain", 3, (short) 1);
        NewTopic byDefault = new NewTopic("admin-default", Optional.empty(), Optional.empty());
        NewTopic configured = new NewTopic("admin-configured", 1, (short) 1)
            .configs(Map.of("cleanup.policy", "compact", "segment.bytes", "1048576"));
        CreateTopicsResult result = x.admin.createTopics(List.of(plain, byDefault, configured));
        Exercise.get(result.all());
        Map<String, Object> saw = new TreeMap<>();
        for (String name : List.of("admin-plain", "admin-default", "admin-configured")) {
            Config config = Exercise.get(result.config(name));
            saw.put(name, Map.of(
                "partitions", Exercise.get(result.numPartitions(name)),
                "replicas", Exercise.get(result.replicationFactor(name)),
                "hasId", !Exercise.get(result.topicId(name)).equals(Uuid.ZERO_UUID),
                "cleanup.policy", config.get("cleanup.policy").value(),
                "segment.bytes", config.get("segment.bytes").value(),
                "segment.bytes source", config.get("segment.bytes").source()));
        }
        return saw;
    }

    private static Object refuse(Exercise x) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        saw.put("exists", tryCreate(x, new NewTopic("admin-plain", 1, (short) 1)));
        saw.put("exists, validate only", Exercise.outcome(() -> Exercise.get(x.admin.createTopics(
            List.of(new NewTopic("admin-plain", 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all())));
        saw.put("validate only", Exercise.outcome(() -> Exercise.get(x.admin.createTopics(
            List.of(new NewTopic("admin-imagined", 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all())));
        saw.put("space in name", tryCreate(x, new NewTopic("admin plain", 1, (short) 1)));
        saw.put("empty name", tryCreate(x, new NewTopic("", 1, (short) 1)));
        saw.put("dots only", tryCreate(x, new NewTopic("..", 1, (short) 1)));
        saw.put("long name", tryCreate(x, new NewTopic("a".repeat(250), 1, (short) 1)));
        saw.put("longest name", tryCreate(x, new NewTopic("a".repeat(249), 1, (short) 1)));
        saw.put("collides", tryCreate(x, new NewTopic("admin.plain", 1, (short) 1)));
        saw.put("three copies", tryCreate(x, new NewTopic("admin-refused", 1, (short) 3)));
        saw.put("no copies", tryCreate(x, new NewTopic("admin-refused", 1, (short) 0)));
        saw.put("no partitions", tryCreate(x, new NewTopic("admin-refused", 0, (short) 1)));
        saw.put("unknown broker", tryCreate(x, new NewTopic("admin-refused", Map.of(0, List.of(99)))));
        saw.put("unknown config", tryCreate(x,
            new NewTopic("admin-refused", 1, (short) 1).configs(Map.of("no.such.config", "1"))));
        saw.put("bad config", tryCreate(x,
            new NewTopic("admin-refused", 1, (short) 1).configs(Map.of("retention.ms", "soon"))));
        saw.put("config out of range", tryCreate(x,
            new NewTopic("admin-refused", 1, (short) 1).configs(Map.of("retention.ms", "-2"))));
        Exercise.outcome(() -> Exercise.get(x.admin.deleteTopics(List.of("a".repeat(249))).all()));
        return saw;
    }

    private static Object tryCreate(Exercise x, NewTopic topic) {
        return Exercise.outcome(() -> Exercise.get(x.admin.createTopics(List.of(topic)).all()));
    }

    private static Object describe(Exercise x) throws Exception {
        TopicDescription plain = Exercise.get(x.admin.describeTopics(List.of("admin-plain")).allTopicNames()).get("admin-plain");
        Map<String, Object> saw = new TreeMap<>();
        saw.put("internal", plain.isInternal());
        saw.put("partitions", plain.partitions().stream().map(p -> Map.of(
            "partition", p.partition(), "replicas", p.replicas().size(), "isr", p.isr().size(),
            "led", p.leader() != null && p.replicas().contains(p.leader()))).toList());
        saw.put("by id", Exercise.get(x.admin.describeTopics(TopicCollection.ofTopicIds(List.of(plain.topicId())))
            .allTopicIds()).get(plain.topicId()).name());
        saw.put("unknown name", Exercise.outcome(() -> Exercise.get(x.admin.describeTopics(List.of("admin-none")).allTopicNames())));
        saw.put("unknown id", Exercise.outcome(() -> Exercise.get(
            x.admin.describeTopics(TopicCollection.ofTopicIds(List.of(new Uuid(7, 7)))).allTopicIds())));
        saw.put("illegal name", Exercise.outcome(() -> Exercise.get(x.admin.describeTopics(List.of("a b")).allTopicNames())));
        return saw;
    }

    private static Object list(Exercise x) throws Exception {
        return Exercise.get(x.admin.listTopics().names()).stream().filter(name -> name.startsWith("admin-")).sorted().toList();
    }

    private static Object addPartitions(Exercise x) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        saw.put("to five", Exercise.outcome(() ->
            Exercise.get(x.admin.createPartitions(Map.of("admin-plain", NewPartitions.increaseTo(5))).all())));
        saw.put("to five again", Exercise.outcome(() ->
            Exercise.get(x.admin.createPartitions(Map.of("admin-plain", NewPartitions.increaseTo(5))).all())));
        saw.put("to four", Exercise.outcome(() ->
            Exercise.get(x.admin.createPartitions(Map.of("admin-plain", NewPartitions.increaseTo(4))).all())));
        saw.put("unknown", Exercise.outcome(() ->
            Exercise.get(x.admin.createPartitions(Map.of("admin-none", NewPartitions.increaseTo(5))).all())));
        Exercise.until("five partitions", () -> Exercise.outcome(() -> Exercise.get(
            x.admin.describeTopics(List.of("admin-plain")).allTopicNames()).get("admin-plain").partitions().size()).equals(5));
        return saw;
    }

    private static Object describeConfigs(Exercise x) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        Config config = topicConfig(x, "admin-configured");
        for (String name : SHOWN_TOPIC_CONFIGS) {
            ConfigEntry entry = config.get(name);
            // Kafka stores this one for the whole cluster when its folder is formatted; we keep the default.
            boolean ofCluster = name.equals("min.insync.replicas");
            saw.put(name, entry == null ? "absent" : Map.of(
                "value", String.valueOf(entry.value()), "source", ofCluster ? "any" : entry.source(),
                "readOnly", entry.isReadOnly(), "sensitive", entry.isSensitive()));
        }
        saw.put("unknown topic", Exercise.outcome(() -> topicConfig(x, "admin-none")));
        return saw;
    }

    private static Config topicConfig(Exercise x, String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return Exercise.get(x.admin.describeConfigs(List.of(resource)).all()).get(resource);
    }

    private static Object alterConfigs(Exercise x) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        saw.put("1 set", alter(x, "admin-configured", "retention.ms", "60000", AlterConfigOp.OpType.SET));
        saw.put("2 append", alter(x, "admin-configured", "cleanup.policy", "delete", AlterConfigOp.OpType.APPEND));
        saw.put("3 subtract", alter(x, "admin-configured", "cleanup.policy", "compact", AlterConfigOp.OpType.SUBTRACT));
        saw.put("4 delete", alter(x, "admin-configured", "retention.ms", "", AlterConfigOp.OpType.DELETE));
        saw.put("5 bad value", alter(x, "admin-configured", "retention.ms", "soon", AlterConfigOp.OpType.SET));
        saw.put("6 unknown config", alter(x, "admin-configured", "no.such.config", "1", AlterConfigOp.OpType.SET));
        saw.put("7 append to a number", alter(x, "admin-configured", "retention.ms", "1", AlterConfigOp.OpType.APPEND));
        saw.put("8 unknown topic", alter(x, "admin-none", "retention.ms", "1", AlterConfigOp.OpType.SET));
        return saw;
    }

    private static Object alter(Exercise x, String topic, String name, String value, AlterConfigOp.OpType op) {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Collection<AlterConfigOp> ops = List.of(new AlterConfigOp(new ConfigEntry(name, value), op));
        Object outcome = Exercise.outcome(() -> Exercise.get(x.admin.incrementalAlterConfigs(Map.of(resource, ops)).all()));
        if (!outcome.equals("ok")) {
            return outcome;
        }
        // Kafka answers when the controller knows; the broker learns of it a little later.
        sleep(300);
        return Exercise.outcome(() -> {
            ConfigEntry entry = topicConfig(x, topic).get(name);
            return entry.value() + " " + entry.source();
        });
    }

    private static void sleep(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private static Object brokerConfigs(Exercise x) throws Exception {
        int node = Exercise.get(x.admin.describeCluster().nodes()).iterator().next().id();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(node));
        Config config = Exercise.get(x.admin.describeConfigs(List.of(resource)).all()).get(resource);
        Map<String, Object> saw = new TreeMap<>();
        for (String name : List.of("auto.create.topics.enable", "log.retention.ms", "log.segment.bytes", "message.max.bytes",
                "num.partitions", "transaction.max.timeout.ms", "transactional.id.expiration.ms")) {
            ConfigEntry entry = config.get(name);
            saw.put(name, entry == null ? "absent" : String.valueOf(entry.value()));
        }
        return saw;
    }

    private static Object logDirs(Exercise x) throws Exception {
        int node = Exercise.get(x.admin.describeCluster().nodes()).iterator().next().id();
        Map<String, LogDirDescription> dirs = Exercise.get(x.admin.describeLogDirs(List.of(node)).allDescriptions()).get(node);
        long ofPlain = dirs.values().stream().flatMap(dir -> dir.replicaInfos().keySet().stream())
            .filter(partition -> partition.topic().equals("admin-plain")).count();
        return Map.of("dirs", dirs.size(), "replicas of admin-plain", ofPlain,
            "errors", dirs.values().stream().filter(dir -> dir.error() != null).count());
    }

    private static Object delete(Exercise x) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        Uuid id = Exercise.get(x.admin.describeTopics(List.of("admin-default")).allTopicNames()).get("admin-default").topicId();
        saw.put("by name", Exercise.outcome(() -> Exercise.get(x.admin.deleteTopics(List.of("admin-plain")).all())));
        saw.put("by id", Exercise.outcome(() ->
            Exercise.get(x.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all())));
        saw.put("unknown name", Exercise.outcome(() -> Exercise.get(x.admin.deleteTopics(List.of("admin-none")).all())));
        saw.put("unknown id", Exercise.outcome(() ->
            Exercise.get(x.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(new Uuid(7, 7)))).all())));
        saw.put("again", Exercise.outcome(() -> Exercise.get(x.admin.deleteTopics(List.of("admin-plain")).all())));
        Exercise.until("the end of admin-plain", () -> Exercise.outcome(() -> list(x)).equals(List.of("admin-configured")));
        // The name may be used again at once, for another topic.
        x.createTopic("admin-plain", 2);
        saw.put("created again", list(x));
        return saw;
    }

    private static Object thousandPartitions(Exercise x) throws Exception {
        x.createTopic("admin-wide", 1000);
        try (KafkaProducer<byte[], byte[]> producer = x.producer("linger.ms", "20")) {
            for (int partition = 0; partition < 1000; partition++) {
                producer.send(new ProducerRecord<>("admin-wide", partition, null, Exercise.bytes("p" + partition)));
            }
        }
        Map<TopicPartition, OffsetSpec> latest = Exercise.partitions("admin-wide", 1000).stream()
            .collect(Collectors.toMap(partition -> partition, partition -> OffsetSpec.latest()));
        long ends = Exercise.get(x.admin.listOffsets(latest).all()).values().stream().mapToLong(info -> info.offset()).sum();
        List<String> values = new ArrayList<>(x.readAll("admin-wide", 1000).stream()
            .map(record -> new String(record.value())).sorted().toList());
        Exercise.get(x.admin.deleteTopics(List.of("admin-wide")).all());
        return Map.of("ends", ends, "records", values.size(), "distinct", values.stream().distinct().count());
    }
}
