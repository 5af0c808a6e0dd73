import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** Consumer groups of the classic protocol: every assignor, static members, offsets, and what an administrator sees. */
final class GroupSteps {
    private static final String TOPIC = "groups-six";
    private static final String ASSIGNORS = "org.apache.kafka.clients.consumer.";

    private GroupSteps() { }

    static void register(Map<String, Exercise.Step> steps) {
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")) {
            steps.put("groups: two members with " + assignor, x -> twoMembers(x, assignor));
        }
        steps.put("groups: every record once", GroupSteps::everyRecordOnce);
        steps.put("groups: reading continues at the committed offset", GroupSteps::resume);
        steps.put("groups: a static member returns", GroupSteps::staticReturns);
        steps.put("groups: a static member is fenced", GroupSteps::staticFenced);
        steps.put("groups: a static member is removed", GroupSteps::staticRemoved);
        steps.put("groups: committed offsets", GroupSteps::offsets);
        steps.put("groups: a pattern finds new topics", GroupSteps::pattern);
        steps.put("groups: described while alive", GroupSteps::describedAlive);
        steps.put("groups: listed", GroupSteps::listed);
        steps.put("groups: changed by an administrator", GroupSteps::administered);
        steps.put("groups: deleted", GroupSteps::deleted);
    }

    /** A consumer and what happened to it. */
    static final class Member implements ConsumerRebalanceListener, AutoCloseable {
        final KafkaConsumer<byte[], byte[]> consumer;
        final List<Integer> revokedCounts = new ArrayList<>();
        final List<String> values = new ArrayList<>();
        int assignments;

        Member(KafkaConsumer<byte[], byte[]> consumer, String... topics) {
            this.consumer = consumer;
            consumer.subscribe(List.of(topics), this);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revokedCounts.add(partitions.size());
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assignments++;
        }

        void poll() {
            consumer.poll(Duration.ofMillis(20)).forEach(record -> values.add(new String(record.value())));
        }

        int count() {
            return consumer.assignment().size();
        }

        @Override
        public void close() {
            consumer.close();
        }
    }

    private static void ensureTopic(Exercise x) throws Exception {
        if (Exercise.get(x.admin.listTopics().names()).contains(TOPIC)) {
            return;
        }
        x.createTopic(TOPIC, 6);
        try (KafkaProducer<byte[], byte[]> producer = x.producer()) {
            for (int i = 0; i < 600; i++) {
                producer.send(new ProducerRecord<>(TOPIC, i % 6, null, Exercise.bytes("v" + i)));
            }
        }
    }

    private static Member member(Exercise x, String group, String... settings) {
        String[] all = Stream.concat(Stream.of("group.id", group), Stream.of(settings)).toArray(String[]::new);
        return new Member(x.consumer(all), TOPIC);
    }

    private static void settle(String what, int each, Member... members) {
        Exercise.until(what, () -> {
            for (Member member : members) {
                member.poll();
            }
            return Stream.of(members).allMatch(member -> member.count() == each);
        });
    }

    private static Object twoMembers(Exercise x, String assignor) throws Exception {
        ensureTopic(x);
        String[] settings = {"partition.assignment.strategy", ASSIGNORS + assignor};
        Map<String, Object> saw = new TreeMap<>();
        try (Member first = member(x, "groups-" + assignor, settings)) {
            settle("one with six", 6, first);
            first.revokedCounts.clear();
            try (Member second = member(x, "groups-" + assignor, settings)) {
                settle("two with three", 3, first, second);
                Set<TopicPartition> both = new HashSet<>(first.consumer.assignment());
                both.addAll(second.consumer.assignment());
                saw.put("together", both.size());
                saw.put("first gave up", first.revokedCounts.stream().filter(count -> count > 0).toList());
            }
            settle("one with six again", 6, first);
            saw.put("alone again", first.count());
        }
        return saw;
    }

    private static Object everyRecordOnce(Exercise x) throws Exception {
        ensureTopic(x);
        try (Member first = member(x, "groups-once"); Member second = member(x, "groups-once")) {
            settle("two with three", 3, first, second);
            // Records read before the group was complete may be read again by another member: start here.
            for (Member member : List.of(first, second)) {
                member.values.clear();
                member.consumer.seekToBeginning(member.consumer.assignment());
            }
            Exercise.until("six hundred records", () -> {
                first.poll();
                second.poll();
                return first.values.size() + second.values.size() >= 600;
            });
            Set<String> distinct = new HashSet<>(first.values);
            distinct.addAll(second.values);
            return Map.of("first", first.values.size(), "second", second.values.size(), "distinct", distinct.size());
        }
    }

    private static Object resume(Exercise x) throws Exception {
        ensureTopic(x);
        List<Integer> counts = new ArrayList<>();
        Set<String> distinct = new HashSet<>();
        for (int round = 0; round < 3; round++) {
            try (Member member = new Member(x.consumer("group.id", "groups-resume", "max.poll.records", "50"), TOPIC)) {
                int wanted = round < 2 ? 200 : 600 - 2 * 200;
                Exercise.until("two hundred records", () -> {
                    member.poll();
                    return member.values.size() >= wanted;
                });
                member.consumer.commitSync();
                counts.add(member.values.size());
                distinct.addAll(member.values);
            }
        }
        return Map.of("distinct", distinct.size(), "all", counts.stream().mapToInt(Integer::intValue).sum());
    }

    private static Object staticReturns(Exercise x) throws Exception {
        ensureTopic(x);
        Map<String, Object> saw = new TreeMap<>();
        try (Member first = member(x, "groups-static", "group.instance.id", "one")) {
            Member second = member(x, "groups-static", "group.instance.id", "two");
            settle("two with three", 3, first, second);
            int generation = first.consumer.groupMetadata().generationId();
            Set<TopicPartition> before = new HashSet<>(second.consumer.assignment());
            second.close();
            first.poll();
            try (Member again = member(x, "groups-static", "group.instance.id", "two")) {
                settle("two with three again", 3, first, again);
                saw.put("same partitions", before.equals(again.consumer.assignment()));
                saw.put("same generation", generation == again.consumer.groupMetadata().generationId()
                    && generation == first.consumer.groupMetadata().generationId());
                saw.put("first was left alone", first.assignments <= 2);
            }
        }
        return saw;
    }

    private static Object staticFenced(Exercise x) throws Exception {
        ensureTopic(x);
        try (Member first = member(x, "groups-static-fenced", "group.instance.id", "one")) {
            settle("one with six", 6, first);
            try (Member usurper = member(x, "groups-static-fenced", "group.instance.id", "one")) {
                return Map.of("first", Exercise.outcome(() -> {
                    Exercise.until("the fence", () -> {
                        usurper.poll();
                        first.poll();
                        return false;
                    });
                    return null;
                }));
            }
        }
    }

    private static Object staticRemoved(Exercise x) throws Exception {
        ensureTopic(x);
        String group = "groups-static-removed";
        Member member = member(x, group, "group.instance.id", "one");
        settle("one with six", 6, member);
        member.close();
        var description = Exercise.get(x.admin.describeConsumerGroups(List.of(group)).all()).get(group);
        var options = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("one")));
        var again = new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("one")));
        return Map.of(
            "1 still there", description.members().size(),
            "2 instance", description.members().iterator().next().groupInstanceId().orElse("none"),
            "3 removed", Exercise.outcome(() -> Exercise.get(x.admin.removeMembersFromConsumerGroup(group, options).all())),
            "4 removed again", Exercise.outcome(() -> Exercise.get(x.admin.removeMembersFromConsumerGroup(group, again).all())),
            "5 left", Exercise.get(x.admin.describeConsumerGroups(List.of(group)).all()).get(group).members().size());
    }

    private static Object offsets(Exercise x) throws Exception {
        ensureTopic(x);
        TopicPartition zero = new TopicPartition(TOPIC, 0);
        TopicPartition one = new TopicPartition(TOPIC, 1);
        Map<String, Object> saw = new TreeMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = x.consumer("group.id", "groups-offsets")) {
            consumer.assign(List.of(zero, one));
            saw.put("1 before", String.valueOf(consumer.committed(Set.of(zero)).get(zero)));
            consumer.commitSync(Map.of(
                zero, new OffsetAndMetadata(17, Optional.of(0), "a word"), one, new OffsetAndMetadata(18, Optional.empty(), "")));
            saw.put("2 zero", String.valueOf(consumer.committed(Set.of(zero)).get(zero)));
            saw.put("3 one", String.valueOf(consumer.committed(Set.of(one)).get(one)));
            saw.put("4 metadata too large", Exercise.outcome(() -> {
                consumer.commitSync(Map.of(zero, new OffsetAndMetadata(19, "x".repeat(5000))));
                return null;
            }));
            saw.put("5 unknown topic", Exercise.outcome(() -> {
                consumer.commitSync(Map.of(new TopicPartition("groups-none", 0), new OffsetAndMetadata(1)), Duration.ofSeconds(2));
                return null;
            }));
            // A consumer that starts now begins at the group's offsets.
            consumer.poll(Duration.ofMillis(100));
            saw.put("6 position", consumer.position(zero));
        }
        saw.put("7 by the admin", String.valueOf(Exercise.get(x.admin.listConsumerGroupOffsets("groups-offsets")
            .partitionsToOffsetAndMetadata()).get(zero)));
        saw.put("8 of some partitions", String.valueOf(Exercise.get(x.admin.listConsumerGroupOffsets(
            Map.of("groups-offsets", new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(one)))).all())
            .get("groups-offsets").get(one)));
        saw.put("9 of nobody", Exercise.outcome(() -> Exercise.get(
            x.admin.listConsumerGroupOffsets("groups-nobody").partitionsToOffsetAndMetadata()).size()));
        return saw;
    }

    private static Object pattern(Exercise x) throws Exception {
        x.createTopic("groups-pattern-a", 2);
        try (KafkaConsumer<byte[], byte[]> consumer = x.consumer("group.id", "groups-pattern", "metadata.max.age.ms", "500")) {
            consumer.subscribe(Pattern.compile("groups-pattern-.*"));
            Exercise.until("two partitions", () -> {
                consumer.poll(Duration.ofMillis(20));
                return consumer.assignment().size() == 2;
            });
            x.createTopic("groups-pattern-b", 3);
            Exercise.until("five partitions", () -> {
                consumer.poll(Duration.ofMillis(20));
                return consumer.assignment().size() == 5;
            });
            return consumer.assignment().stream().map(String::valueOf).sorted().toList();
        }
    }

    private static Object describedAlive(Exercise x) throws Exception {
        ensureTopic(x);
        Map<String, Object> saw = new TreeMap<>();
        try (Member first = member(x, "groups-alive", "client.id", "first"); Member second = member(x, "groups-alive")) {
            settle("two with three", 3, first, second);
            ConsumerGroupDescription group = Exercise.get(x.admin.describeConsumerGroups(List.of("groups-alive")).all()).get("groups-alive");
            saw.put("state", group.groupState());
            saw.put("type", group.type());
            saw.put("assignor", group.partitionAssignor());
            saw.put("simple", group.isSimpleConsumerGroup());
            saw.put("coordinated", group.coordinator().port() > 0);
            saw.put("assigned", group.members().stream().map(m -> m.assignment().topicPartitions().size()).sorted().toList());
            saw.put("client ids", group.members().stream().filter(m -> m.clientId().equals("first")).count());
            saw.put("hosts", group.members().stream().filter(m -> m.host().contains("127.0.0.1")).count());
            saw.put("deleted while alive", Exercise.outcome(() ->
                Exercise.get(x.admin.deleteConsumerGroups(List.of("groups-alive")).all())));
            first.consumer.commitSync();
            saw.put("offset deleted while subscribed", Exercise.outcome(() -> Exercise.get(x.admin.deleteConsumerGroupOffsets(
                "groups-alive", Set.of(new TopicPartition(TOPIC, 0))).all())));
            saw.put("offsets altered while alive", Exercise.outcome(() -> Exercise.get(x.admin.alterConsumerGroupOffsets(
                "groups-alive", Map.of(new TopicPartition(TOPIC, 0), new OffsetAndMetadata(1))).all())));
        }
        ConsumerGroupDescription after = Exercise.get(x.admin.describeConsumerGroups(List.of("groups-alive")).all()).get("groups-alive");
        saw.put("state after", after.groupState());
        saw.put("unknown group", Exercise.outcome(() ->
            Exercise.get(x.admin.describeConsumerGroups(List.of("groups-nobody")).all()).get("groups-nobody").groupState()));
        return saw;
    }

    private static Object listed(Exercise x) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        var all = Exercise.get(x.admin.listGroups().all()).stream().filter(g -> g.groupId().startsWith("groups-alive")).toList();
        saw.put("found", all.stream().map(g -> g.groupId() + " " + g.protocol() + " " + g.groupState().orElse(null)
            + " " + g.type().orElse(null)).toList());
        saw.put("empty only", Exercise.get(x.admin.listGroups(
            new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY))).all()).stream()
            .anyMatch(g -> g.groupId().equals("groups-alive")));
        saw.put("stable only", Exercise.get(x.admin.listGroups(
            new ListGroupsOptions().inGroupStates(Set.of(GroupState.STABLE))).all()).stream()
            .anyMatch(g -> g.groupId().equals("groups-alive")));
        return saw;
    }

    private static Object administered(Exercise x) throws Exception {
        TopicPartition zero = new TopicPartition(TOPIC, 0);
        TopicPartition one = new TopicPartition(TOPIC, 1);
        Map<String, Object> saw = new TreeMap<>();
        saw.put("1 altered", Exercise.outcome(() -> Exercise.get(x.admin.alterConsumerGroupOffsets("groups-administered",
            Map.of(zero, new OffsetAndMetadata(3), one, new OffsetAndMetadata(4))).all())));
        saw.put("2 seen", Exercise.get(x.admin.listConsumerGroupOffsets("groups-administered")
            .partitionsToOffsetAndMetadata()).get(zero).offset());
        saw.put("3 one deleted", Exercise.outcome(() ->
            Exercise.get(x.admin.deleteConsumerGroupOffsets("groups-administered", Set.of(zero)).all())));
        saw.put("4 left", Exercise.get(x.admin.listConsumerGroupOffsets("groups-administered")
            .partitionsToOffsetAndMetadata()).keySet().stream().map(String::valueOf).toList());
        saw.put("5 unknown group", Exercise.outcome(() ->
            Exercise.get(x.admin.deleteConsumerGroupOffsets("groups-nobody", Set.of(zero)).all())));
        return saw;
    }

    private static Object deleted(Exercise x) throws Exception {
        Map<String, Object> saw = new TreeMap<>();
        saw.put("1 empty group", Exercise.outcome(() ->
            Exercise.get(x.admin.deleteConsumerGroups(List.of("groups-administered")).all())));
        saw.put("2 again", Exercise.outcome(() ->
            Exercise.get(x.admin.deleteConsumerGroups(List.of("groups-administered")).all())));
        saw.put("3 unknown", Exercise.outcome(() ->
            Exercise.get(x.admin.deleteConsumerGroups(List.of("groups-nobody")).all())));
        return saw;
    }
}
