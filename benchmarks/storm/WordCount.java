import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.StringTokenizer;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.BasicOutputCollector;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseBasicBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/**
 * A word count on Storm's LocalCluster, which a program drives by lines on its standard input: the peer of
 * benchmarks/suite/storm.py.
 *
 * <p>Arguments: a file of lines, the upper bounds of the latency buckets in ns, topology.max.spout.pending, and the
 * number of tasks of each bolt. The spout emits the lines over and over. All options of Storm are the defaults, but for
 * one worker and one acker.
 *
 * <ul>
 *   <li>"open TRACKED INTERVAL" lets the spout emit, with message ids if TRACKED is 1, and a line each INTERVAL ns;
 *   <li>"read" answers all counts so far;
 *   <li>"close" stops the spout, waits until all that it emitted is processed, and answers the same;
 *   <li>"counts FILE" writes each word and its count.
 * </ul>
 *
 * <p>The JVM ends with its standard input.
 */
public final class WordCount {
    /** What one task did. Its own thread alone writes; after "close" the words may be read. */
    private static final class Tally {
        final AtomicLong received = new AtomicLong();
        final AtomicLong emitted = new AtomicLong();
        final Map<String, Long> words = new HashMap<>();

        static void add(AtomicLong count, long more) {
            count.lazySet(count.getPlain() + more);
        }
    }

    // The worker of a LocalCluster runs in this JVM, so its tasks share these.
    private static final List<Tally> SPLITS = new CopyOnWriteArrayList<>();
    private static final List<Tally> COUNTS = new CopyOnWriteArrayList<>();
    private static String[] lines;
    private static long[] bounds;
    private static AtomicLongArray latencies;
    private static final AtomicLong EMITTED = new AtomicLong();
    private static final AtomicLong TRACKED = new AtomicLong();
    private static final AtomicLong ACKED = new AtomicLong();
    private static final AtomicLong FAILED = new AtomicLong();
    private static boolean tracked;
    private static long intervalNs;
    private static volatile boolean open;
    private static volatile boolean closed;

    /** Emits the lines over and over while the program wants it to. */
    public static final class Lines extends BaseRichSpout {
        private transient SpoutOutputCollector collector;
        private transient int next;
        private transient boolean wasOpen;
        private transient long dueNs;

        @Override
        public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector given) {
            collector = given;
            closed = true;
        }

        @Override
        public void nextTuple() {
            if (!open) {
                closed = true;
                wasOpen = false;
                return;
            }
            if (intervalNs > 0) {
                long now = System.nanoTime();
                if (!wasOpen) {
                    dueNs = now;
                }
                wasOpen = true;
                if (now < dueNs) {
                    return;
                }
                dueNs += intervalNs;
            }
            Values values = new Values(lines[next]);
            next = next + 1 == lines.length ? 0 : next + 1;
            Tally.add(EMITTED, 1);
            if (tracked) {
                Tally.add(TRACKED, 1);
                collector.emit(values, System.nanoTime());
            } else {
                collector.emit(values);
            }
        }

        @Override
        public void ack(Object id) {
            int found = Arrays.binarySearch(bounds, System.nanoTime() - (Long) id);
            int bucket = found < 0 ? -found - 1 : found;
            latencies.lazySet(bucket, latencies.getPlain(bucket) + 1);
            Tally.add(ACKED, 1);
        }

        @Override
        public void fail(Object id) {
            Tally.add(FAILED, 1);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("line"));
        }
    }

    /** Splits lines at white space. */
    public static final class Split extends BaseBasicBolt {
        private transient Tally tally;

        @Override
        public void prepare(Map<String, Object> conf, TopologyContext context) {
            tally = new Tally();
            SPLITS.add(tally);
        }

        @Override
        public void execute(Tuple tuple, BasicOutputCollector collector) {
            StringTokenizer words = new StringTokenizer(tuple.getString(0), " ");
            int count = 0;
            for (; words.hasMoreTokens(); count++) {
                collector.emit(new Values(words.nextToken()));
            }
            Tally.add(tally.emitted, count);
            Tally.add(tally.received, 1);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("word"));
        }
    }

    /** Counts words. */
    public static final class Count extends BaseBasicBolt {
        private transient Tally tally;

        @Override
        public void prepare(Map<String, Object> conf, TopologyContext context) {
            tally = new Tally();
            COUNTS.add(tally);
        }

        @Override
        public void execute(Tuple tuple, BasicOutputCollector collector) {
            tally.words.merge(tuple.getString(0), 1L, Long::sum);
            Tally.add(tally.received, 1);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            // It emits nothing.
        }
    }

    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        lines = Files.readString(Path.of(arguments[0])).split("\n", -1);
        bounds = Stream.of(arguments[1].split(",")).mapToLong(Long::parseLong).toArray();
        latencies = new AtomicLongArray(bounds.length + 1);
        int tasks = Integer.parseInt(arguments[3]);

        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("lines", new Lines(), 1);
        builder.setBolt("split", new Split(), tasks).shuffleGrouping("lines");
        builder.setBolt("count", new Count(), tasks).fieldsGrouping("split", new Fields("word"));
        Config conf = new Config();
        conf.setNumWorkers(1);
        conf.setNumAckers(1);
        conf.setMaxSpoutPending(Integer.parseInt(arguments[2]));

        PrintStream answers = System.out;
        System.setOut(System.err); // what libraries print is no answer
        LocalCluster cluster = new LocalCluster.Builder()
                // While this JVM is stopped by a signal, ZooKeeper in it hears nothing.
                .withDaemonConf("storm.zookeeper.session.timeout", 40_000)
                // Nobody asks for Storm's metrics; their usual store wants RocksDB.
                .withDaemonConf("storm.metricstore.class", "org.apache.storm.metricstore.NoOpMetricStore")
                .build();
        cluster.submitTopology("wordcount", conf, builder.createTopology());
        while (!closed) {
            Thread.sleep(10);
        }
        answers.println("ready");
        answers.flush();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            answers.println(obey(order.split(" ", 3)));
            answers.flush();
        }
        Runtime.getRuntime().halt(0); // an orderly shutdown takes seconds, and nothing is lost
    }

    private static String obey(String[] order) throws Exception {
        switch (order[0]) {
            case "open":
                tracked = order[1].equals("1");
                intervalNs = Long.parseLong(order[2]);
                closed = false;
                open = true;
                return "opened";
            case "read":
                return figures();
            case "close":
                close();
                return figures();
            case "counts":
                writeCounts(order[1]);
                return "written";
            default:
                throw new IllegalArgumentException(order[0]);
        }
    }

    private static void close() throws InterruptedException {
        open = false;
        while (!closed) {
            Thread.sleep(1);
        }
        long emitted = EMITTED.get();
        while (received(SPLITS) < emitted) {
            Thread.sleep(1);
        }
        long words = SPLITS.stream().mapToLong(tally -> tally.emitted.get()).sum();
        while (received(COUNTS) < words) {
            Thread.sleep(1);
        }
        while (ACKED.get() + FAILED.get() < TRACKED.get()) {
            Thread.sleep(1);
        }
    }

    private static long received(List<Tally> tallies) {
        return tallies.stream().mapToLong(tally -> tally.received.get()).sum();
    }

    private static String figures() {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long[] figures = {
            System.nanoTime(),
            system.getProcessCpuTime(),
            received(SPLITS) + received(COUNTS),
            EMITTED.get(),
            ACKED.get(),
            FAILED.get()
        };
        IntStream buckets = IntStream.range(0, latencies.length());
        return Stream.concat(
                        Arrays.stream(figures).mapToObj(Long::toString),
                        buckets.mapToObj(bucket -> Long.toString(latencies.get(bucket))))
                .collect(Collectors.joining(" "));
    }

    private static void writeCounts(String file) throws Exception {
        try (PrintWriter writer = new PrintWriter(Files.newBufferedWriter(Path.of(file)))) {
            for (Tally tally : COUNTS) {
                tally.words.forEach((word, count) -> writer.print(word + " " + count + "\n"));
            }
        }
    }
}
