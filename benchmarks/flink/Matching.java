import static org.apache.flink.table.api.Schema.newBuilder;

import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;

/**
 * Flink's MATCH_RECOGNIZE over events in a file: eight bytes each of account, milliseconds and amount, in the order of
 * time. Prints how many matches there are, and the milliseconds from the first event to the end of the job.
 */
public class Matching {
    static final AtomicLong MATCHES = new AtomicLong();
    static volatile long began;

    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2, new Configuration());
        env.getConfig().enableObjectReuse();
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        TypeInformation<Row> type = Types.ROW_NAMED(
                new String[] {"account", "amount", "time"}, Types.LONG, Types.DOUBLE, Types.LONG);
        var events = env.addSource(new Events(arguments[0]), type).setParallelism(1)
                .assignTimestampsAndWatermarks(WatermarkStrategy.<Row>forMonotonousTimestamps()
                        .withTimestampAssigner((row, before) -> (Long) row.getField(2))).setParallelism(1);
        Table table = tables.fromDataStream(events, newBuilder()
                .column("account", "BIGINT").column("amount", "DOUBLE")
                .columnByMetadata("at", DataTypes.TIMESTAMP_LTZ(3), "rowtime")
                .watermark("at", "SOURCE_WATERMARK()").build());
        tables.createTemporaryView("payments", table);
        Table found = tables.sqlQuery(String.join(" ", java.nio.file.Files.readAllLines(Path.of(arguments[1]))));
        tables.toDataStream(found).map(row -> { MATCHES.incrementAndGet(); return 1L; }).returns(Types.LONG)
                .sinkTo(new DiscardingSink<>());
        env.execute();
        System.out.println(MATCHES.get() + " " + (System.nanoTime() - began) / 1_000_000);
    }

    /** The events of a file, from memory. */
    public static class Events implements SourceFunction<Row> {
        private final String file;

        public Events(String file) {
            this.file = file;
        }

        @Override
        public void run(SourceContext<Row> context) throws Exception {
            try (FileChannel channel = FileChannel.open(Path.of(file))) {
                MappedByteBuffer bytes = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size());
                bytes.load();
                bytes.order(ByteOrder.LITTLE_ENDIAN);
                began = System.nanoTime();
                while (bytes.hasRemaining()) {
                    long account = bytes.getLong(), time = bytes.getLong();
                    context.collect(Row.of(account, bytes.getDouble(), time));
                }
            }
        }

        @Override
        public void cancel() {}
    }
}
