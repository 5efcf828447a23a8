import java.util.List;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds finished trees as a user of Spark would without acker: transformWithState with one value for each open tree,
 * the xor of its messages so far. It forgets a tree that is finished. All of it runs in the JVM.
 */
public final class XorState extends StatefulProcessor<Long, Tuple2<Long, Long>, Long> {
    private transient ValueState<Long> ackVal;

    @Override
    public void init(OutputMode mode, TimeMode timeMode) {
        ackVal = getHandle().getValueState("ack val", Encoders.LONG(), TTLConfig.NONE());
    }

    @Override
    public Iterator<Long> handleInputRows(Long rootId, Iterator<Tuple2<Long, Long>> rows, TimerValues timers) {
        Long before = ackVal.get();
        long now = before == null ? 0 : before;
        while (rows.hasNext()) {
            now ^= rows.next()._2();
        }
        if (now != 0) {
            ackVal.update(now);
            return CollectionConverters.asScala(List.<Long>of().iterator());
        }
        ackVal.clear();
        return CollectionConverters.asScala(List.of(rootId).iterator());
    }

    /** Returns the root ids of the finished trees, of messages with the columns root_id and value. */
    public static Dataset<Row> finished(Dataset<Row> messages) {
        return messages.select("root_id", "value")
                .as(Encoders.tuple(Encoders.LONG(), Encoders.LONG()))
                .groupByKey((MapFunction<Tuple2<Long, Long>, Long>) Tuple2::_1, Encoders.LONG())
                .transformWithState(new XorState(), TimeMode.None(), OutputMode.Append(), Encoders.LONG())
                .toDF("root_id");
    }
}
