// franz-go.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const deadline = 40 * time.Second

var (
	bootstrap string
	prefix    string
	admin     *kadm.Client
	written   []pair
	quick     = 100 * time.Millisecond
)

// A key and a value; nil stays nil.
type pair struct{ key, value []byte }

type step func(context.Context) error

func main() {
	bootstrap, prefix = os.Args[1], os.Args[2]
	for i := range 100 {
		value := fmt.Sprintf("%d:%s", i, strings.Repeat("water", 8))
		written = append(written, pair{[]byte(fmt.Sprintf("k%d", i%7)), []byte(value)})
	}
	client, err := newClient()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	admin = kadm.NewClient(client)
	known := steps()
	for _, name := range os.Args[3:] {
		fmt.Println(outcome(name, known[name]))
	}
}

func outcome(name string, take step) string {
	if take == nil {
		return "skip " + name + " the library has no such call"
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline+15*time.Second)
	defer cancel()
	if err := take(ctx); err != nil {
		return "fail " + name + " " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return "pass " + name
}

func steps() map[string]step {
	known := map[string]step{
		"create-topic":         createTopic,
		"metadata":             metadata,
		"headers":              headers,
		"null-key-value":       nullKeyValue,
		"large-record":         largeRecord,
		"consume-earliest":     consumeEarliest,
		"consume-latest":       consumeLatest,
		"consume-timestamp":    consumeTimestamp,
		"long-session":         longSession,
		"group-one":            groupOne,
		"group-resume":         groupResume,
		"group-static":         groupStatic,
		"txn-commit":           txnCommit,
		"txn-abort":            txnAbort,
		"txn-isolation":        txnIsolation,
		"txn-offsets":          txnOffsets,
		"txn-fencing":          txnFencing,
		"delete-topic":         deleteTopic,
		"create-partitions":    createPartitions,
		"configs":              configs,
		"delete-records":       deleteRecords,
		"list-offsets":         listOffsets,
		"groups":               groups,
		"delete-group-offsets": deleteGroupOffsets,
	}
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(),
		"zstd": kgo.ZstdCompression(),
	} {
		known["produce-"+name] = writtenIsRead("codec-"+name, kgo.ProducerBatchCompression(codec))
	}
	known["idempotent"] = writtenIsRead("idempotent")
	known["acks-all"] = writtenIsRead("acks-all", kgo.DisableIdempotentWrite())
	known["acks-1"] = writtenIsRead("acks-1",
		kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
	known["acks-0"] = writtenIsRead("acks-0",
		kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.NoAck()))
	known["group-eager"] = twoMembers("eager", kgo.Balancers(kgo.RangeBalancer()))
	known["group-cooperative"] = twoMembers("cooperative",
		kgo.Balancers(kgo.CooperativeStickyBalancer()))
	known["group-consumer"] = twoMembers("consumer",
		kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	return known
}

// What the steps share.

func newClient(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(address(), options...)...)
}

func same(found, wanted any, what string) error {
	seen, should := fmt.Sprint(found), fmt.Sprint(wanted)
	if seen == should {
		return nil
	}
	return fmt.Errorf("%s: %.80s instead of %.80s", what, seen, should)
}

func until(what string, isSo func() bool) error {
	for end := time.Now().Add(deadline); !isSo(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s did not happen within %s", what, deadline)
		}
	}
	return nil
}

func topic(ctx context.Context, name string, partitions int32) (string, error) {
	made := prefix + "-" + name
	if _, err := admin.CreateTopic(ctx, partitions, 1, nil, made); err != nil {
		return made, err
	}
	return made, until("metadata of "+made, func() bool {
		return partitionsOf(ctx, made) == int(partitions)
	})
}

func partitionsOf(ctx context.Context, name string) int {
	found, err := admin.ListTopics(ctx, name)
	if err != nil || found[name].Err != nil {
		return -1
	}
	return len(found[name].Partitions)
}

func records(name string, partition int32, pairs []pair) []*kgo.Record {
	var made []*kgo.Record
	for _, each := range pairs {
		made = append(made, &kgo.Record{
			Topic: name, Partition: partition, Key: each.key, Value: each.value,
		})
	}
	return made
}

func write(
	ctx context.Context, name string, partition int32, pairs []pair, options ...kgo.Opt,
) error {
	client, err := newClient(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ProduceSync(ctx, records(name, partition, pairs)...).FirstErr()
}

func read(client *kgo.Client, count int, within time.Duration) []*kgo.Record {
	var found []*kgo.Record
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for len(found) < count && ctx.Err() == nil {
		found = append(found, client.PollRecords(ctx, count-len(found)).Records()...)
	}
	return found
}

func readBack(name string, count int, options ...kgo.Opt) ([]*kgo.Record, error) {
	from := map[string]map[int32]kgo.Offset{name: {0: kgo.NewOffset().At(0)}}
	client, err := newClient(append(options, kgo.ConsumePartitions(from))...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return read(client, count, 30*time.Second), nil
}

func samePairs(found []*kgo.Record, wanted []pair) error {
	if len(found) != len(wanted) {
		return fmt.Errorf("%d records instead of %d", len(found), len(wanted))
	}
	for i, record := range found {
		if !sameBytes(record.Key, wanted[i].key) || !sameBytes(record.Value, wanted[i].value) {
			return fmt.Errorf("record %d is not as written", i)
		}
	}
	return nil
}

func sameBytes(a, b []byte) bool {
	return bytes.Equal(a, b) && (a == nil) == (b == nil)
}

func offsets(found []*kgo.Record) []int64 {
	var all []int64
	for _, record := range found {
		all = append(all, record.Offset)
	}
	return all
}

func count(from, to int64) []int64 {
	var all []int64
	for ; from < to; from++ {
		all = append(all, from)
	}
	return all
}

func readAs(name string, pairs []pair, options ...kgo.Opt) error {
	found, err := readBack(name, len(pairs), options...)
	if err != nil {
		return err
	}
	return samePairs(found, pairs)
}

func offsetsAre(name string, wanted []int64, options ...kgo.Opt) error {
	found, err := readBack(name, len(wanted), options...)
	if err != nil {
		return err
	}
	return same(offsets(found), wanted, "offsets")
}

func writtenIsRead(name string, options ...kgo.Opt) step {
	return func(ctx context.Context) error {
		made, err := topic(ctx, name, 1)
		if err == nil {
			err = write(ctx, made, 0, written, options...)
		}
		if err != nil {
			return err
		}
		return readAs(made, written)
	}
}

func member(group, name string, options ...kgo.Opt) (*kgo.Client, error) {
	return newClient(append([]kgo.Opt{
		kgo.ConsumerGroup(prefix + "-" + group), kgo.ConsumeTopics(name),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}, options...)...)
}

func written100(ctx context.Context, name string) (string, error) {
	made, err := topic(ctx, name, 1)
	if err != nil {
		return made, err
	}
	return made, write(ctx, made, 0, written)
}

// The steps.

func createTopic(ctx context.Context) error {
	name, err := topic(ctx, "create", 3)
	if err != nil {
		return err
	}
	if _, err = admin.CreateTopic(ctx, 3, 1, nil, name); !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("the second creation: %v", err)
	}
	return nil
}

func metadata(ctx context.Context) error {
	name, err := topic(ctx, "metadata", 3)
	if err != nil {
		return err
	}
	found, err := admin.Metadata(ctx, name)
	if err != nil {
		return err
	}
	brokers := found.Brokers.NodeIDs()
	for _, partition := range found.Topics[name].Partitions {
		if !slices.Contains(brokers, partition.Leader) {
			return fmt.Errorf("leader %d is no broker", partition.Leader)
		}
	}
	return same(len(brokers), 1, "brokers")
}

func headers(ctx context.Context) error {
	name, err := topic(ctx, "headers", 1)
	if err != nil {
		return err
	}
	given := []kgo.RecordHeader{
		{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")},
		{Key: "none", Value: nil}, {Key: "empty", Value: []byte{}},
	}
	client, err := newClient()
	if err != nil {
		return err
	}
	defer client.Close()
	record := &kgo.Record{Topic: name, Value: []byte("v"), Headers: given}
	if err = client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return err
	}
	found, err := readBack(name, 1)
	if err != nil || len(found) == 0 {
		return fmt.Errorf("no record, %v", err)
	}
	// The library reads an empty header as nil, so that only the text is compared.
	return same(found[0].Headers, given, "headers")
}

func nullKeyValue(ctx context.Context) error {
	name, err := topic(ctx, "nulls", 1)
	given := []pair{{nil, []byte("v")}, {[]byte("k"), nil}, {[]byte{}, []byte{}}, {nil, nil}}
	if err == nil {
		err = write(ctx, name, 0, given)
	}
	if err != nil {
		return err
	}
	return readAs(name, given)
}

func largeRecord(ctx context.Context) error {
	name, err := topic(ctx, "large", 1)
	given := []pair{{[]byte("k"), bytes.Repeat([]byte("0123456789"), 90_000)}}
	if err == nil {
		err = write(ctx, name, 0, given)
	}
	if err != nil {
		return err
	}
	return readAs(name, given)
}

func consumeEarliest(ctx context.Context) error {
	name, err := written100(ctx, "earliest")
	if err != nil {
		return err
	}
	client, err := member("earliest", name)
	if err != nil {
		return err
	}
	defer client.Close()
	return samePairs(read(client, 100, 30*time.Second), written)
}

func consumeLatest(ctx context.Context) error {
	name, err := written100(ctx, "latest")
	if err != nil {
		return err
	}
	client, err := newClient(kgo.ConsumeTopics(name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))
	if err != nil {
		return err
	}
	defer client.Close()
	// What is written before the reader has found the end is not for it: write until one is.
	var found []*kgo.Record
	err = until("a new record", func() bool {
		if err := write(ctx, name, 0, []pair{{[]byte("new"), []byte("record")}}); err != nil {
			return false
		}
		found = append(found, read(client, 1, time.Second)...)
		return len(found) > 0
	})
	if err == nil && found[0].Offset < 100 {
		return fmt.Errorf("offset %d was read, which is older than the reader", found[0].Offset)
	}
	return err
}

func consumeTimestamp(ctx context.Context) error {
	name, err := topic(ctx, "timestamp", 1)
	if err != nil {
		return err
	}
	client, err := newClient()
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	for i := range 10 {
		record := &kgo.Record{Topic: name, Value: []byte("v"),
			Timestamp: began.Add(time.Duration(i) * time.Second)}
		if err = client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	// Behind the last record the library answers the end of the log.
	for asked, wanted := range map[int64]int64{0: 0, 4_500: 5, 9_000: 9, 9_001: 10} {
		found, err := admin.ListOffsetsAfterMilli(ctx, began.UnixMilli()+asked, name)
		if err != nil {
			return err
		}
		at, _ := found.Lookup(name, 0)
		what := fmt.Sprintf("offset %d ms after the first", asked)
		if err = same(at.Offset, wanted, what); err != nil {
			return err
		}
	}
	return nil
}

func longSession(ctx context.Context) error {
	name, err := topic(ctx, "session", 1)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(cmp.Or(os.Getenv("SESSION_S"), "3"), 64)
	if err != nil {
		return err
	}
	from := map[string]map[int32]kgo.Offset{name: {0: kgo.NewOffset().At(0)}}
	client, err := newClient(kgo.ConsumePartitions(from))
	if err != nil {
		return err
	}
	defer client.Close()
	var found []*kgo.Record
	sent := 0
	failed := make(chan error, 1)
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for ; time.Now().Before(end); sent++ {
		record := &kgo.Record{Topic: name, Value: []byte(strconv.Itoa(sent))}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		found = append(found, read(client, 1, 10*time.Millisecond)...)
	}
	if err = client.Flush(ctx); err != nil {
		return err
	}
	select {
	case err = <-failed:
		return err
	default:
	}
	found = append(found, read(client, sent-len(found), 20*time.Second)...)
	if err = same(len(found), sent, "records"); err != nil {
		return err
	}
	for number, record := range found {
		if err = same(string(record.Value), number, "value"); err != nil {
			return err
		}
	}
	return nil
}

func groupOne(ctx context.Context) error {
	name, err := topic(ctx, "one", 3)
	if err != nil {
		return err
	}
	for partition := range int32(3) {
		if err = write(ctx, name, partition, written[:10]); err != nil {
			return err
		}
	}
	client, err := member("one", name)
	if err != nil {
		return err
	}
	defer client.Close()
	return same(len(read(client, 30, 30*time.Second)), 30, "records")
}

func groupResume(ctx context.Context) error {
	name, err := written100(ctx, "resume")
	if err != nil {
		return err
	}
	client, err := member("resume", name)
	if err != nil {
		return err
	}
	err = client.CommitRecords(ctx, read(client, 40, 30*time.Second)...)
	client.Close()
	if err != nil {
		return err
	}
	client, err = member("resume", name)
	if err != nil {
		return err
	}
	defer client.Close()
	return same(offsets(read(client, 60, 30*time.Second)), count(40, 100), "offsets")
}

// Partitions that a member holds, by the library's own callbacks.
type held struct {
	client *kgo.Client
	now    chan map[int32]bool
}

func (h held) change(of map[string][]int32, have bool) {
	state := <-h.now
	for _, partitions := range of {
		for _, partition := range partitions {
			if have {
				state[partition] = true
			} else {
				delete(state, partition)
			}
		}
	}
	h.now <- state
}

func (h held) partitions() []int32 {
	read(h.client, 1, quick)
	state := <-h.now
	defer func() { h.now <- state }()
	var all []int32
	for partition := range state {
		all = append(all, partition)
	}
	slices.Sort(all)
	return all
}

func holder(group, name string, options ...kgo.Opt) (held, error) {
	made := held{now: make(chan map[int32]bool, 1)}
	made.now <- map[int32]bool{}
	take := func(_ context.Context, _ *kgo.Client, of map[string][]int32) { made.change(of, true) }
	give := func(_ context.Context, _ *kgo.Client, of map[string][]int32) { made.change(of, false) }
	client, err := member(group, name, append(options, kgo.OnPartitionsAssigned(take),
		kgo.OnPartitionsRevoked(give), kgo.OnPartitionsLost(give))...)
	made.client = client
	return made, err
}

func twoMembers(group string, options ...kgo.Opt) step {
	return func(ctx context.Context) error {
		name, err := topic(ctx, group, 4)
		if err != nil {
			return err
		}
		first, err := holder(group, name, options...)
		if err != nil {
			return err
		}
		defer first.client.Close()
		all := func() bool { return len(first.partitions()) == 4 }
		if err = until("four partitions for the first", all); err != nil {
			return err
		}
		second, err := holder(group, name, options...)
		if err != nil {
			return err
		}
		err = until("two partitions for each", func() bool {
			return len(first.partitions()) == 2 && len(second.partitions()) == 2
		})
		if err == nil && group == "consumer" {
			err = speaksNewProtocol(ctx, prefix+"-"+group)
		}
		second.client.Close()
		if err != nil {
			return err
		}
		return until("four partitions for the first again", all)
	}
}

// Whether the coordinator knows the group as one of KIP-848: the library falls back in silence.
func speaksNewProtocol(ctx context.Context, group string) error {
	found, err := admin.DescribeConsumerGroups(ctx, group)
	if err == nil {
		err = found.Error()
	}
	if err != nil {
		return err
	}
	return same(len(found[group].Members), 2, "members described")
}

func groupStatic(ctx context.Context) error {
	name, err := topic(ctx, "static", 4)
	if err != nil {
		return err
	}
	first, err := holder("static", name, kgo.InstanceID("a"))
	if err != nil {
		return err
	}
	defer first.client.Close()
	var had []int32
	for range 2 {
		second, err := holder("static", name, kgo.InstanceID("b"))
		if err != nil {
			return err
		}
		err = until("two partitions for each", func() bool {
			return len(first.partitions()) == 2 && len(second.partitions()) == 2
		})
		has := second.partitions()
		second.client.Close()
		if err == nil && had != nil {
			err = same(has, had, "partitions after the restart")
		}
		if err != nil {
			return err
		}
		had = has
	}
	return nil
}

func transactional(name string) (*kgo.Client, error) {
	return newClient(kgo.TransactionalID(prefix + "-" + name))
}

// One transaction of so many records.
func transact(
	ctx context.Context, client *kgo.Client, name string, count int, end kgo.TransactionEndTry,
) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, records(name, 0, written[:count])...).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, end)
}

var committed = kgo.FetchIsolationLevel(kgo.ReadCommitted())

func txnCommit(ctx context.Context) error {
	name, err := topic(ctx, "commit", 1)
	if err != nil {
		return err
	}
	client, err := transactional("commit")
	if err != nil {
		return err
	}
	defer client.Close()
	if err = transact(ctx, client, name, 10, kgo.TryCommit); err != nil {
		return err
	}
	return readAs(name, written[:10], committed)
}

func txnAbort(ctx context.Context) error {
	name, err := topic(ctx, "abort", 1)
	if err != nil {
		return err
	}
	client, err := transactional("abort")
	if err != nil {
		return err
	}
	defer client.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err = transact(ctx, client, name, 5, end); err != nil {
			return err
		}
	}
	if err = offsetsAre(name, count(6, 11), committed); err != nil {
		return err
	}
	return offsetsAre(name, append(count(0, 5), count(6, 11)...))
}

func txnIsolation(ctx context.Context) error {
	name, err := topic(ctx, "isolation", 1)
	if err == nil {
		err = write(ctx, name, 0, written[:3])
	}
	if err != nil {
		return err
	}
	client, err := transactional("isolation")
	if err != nil {
		return err
	}
	defer client.Close()
	if err = client.BeginTransaction(); err != nil {
		return err
	}
	if err = client.ProduceSync(ctx, records(name, 0, written[:2])...).FirstErr(); err != nil {
		return err
	}
	if err = write(ctx, name, 0, written[:1]); err != nil {
		return err
	}
	from := map[string]map[int32]kgo.Offset{name: {0: kgo.NewOffset().At(0)}}
	reader, err := newClient(committed, kgo.ConsumePartitions(from))
	if err != nil {
		return err
	}
	defer reader.Close()
	before := offsets(read(reader, 6, 3*time.Second))
	if err = same(before, count(0, 3), "offsets before the end"); err != nil {
		return err
	}
	if err = client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	return same(offsets(read(reader, 3, 30*time.Second)), count(3, 6), "offsets after the end")
}

// The library sends offsets to a transaction through a session that reads and writes.
func txnOffsets(ctx context.Context) error {
	name, err := written100(ctx, "offsets")
	if err != nil {
		return err
	}
	group := prefix + "-txn"
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		session, err := kgo.NewGroupTransactSession(append(address(),
			kgo.TransactionalID(prefix+"-offsets"), kgo.ConsumerGroup(group), committed,
			kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		if err != nil {
			return err
		}
		if err = session.Begin(); err == nil {
			for got := 0; got < 10 && ctx.Err() == nil; {
				got += session.PollRecords(ctx, 10-got).NumRecords()
			}
			_, err = session.End(ctx, end)
		}
		session.Close()
		if err != nil {
			return err
		}
		found, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			return err
		}
		at, _ := found.Lookup(name, 0)
		if err = same(at.At, 10, "committed offset"); err != nil {
			return err
		}
	}
	return nil
}

func txnFencing(ctx context.Context) error {
	name, err := topic(ctx, "fencing", 1)
	if err != nil {
		return err
	}
	older, err := transactional("fencing")
	if err != nil {
		return err
	}
	defer older.Close()
	if err = older.BeginTransaction(); err != nil {
		return err
	}
	if err = older.ProduceSync(ctx, records(name, 0, written[:1])...).FirstErr(); err != nil {
		return err
	}
	newer, err := transactional("fencing")
	if err != nil {
		return err
	}
	defer newer.Close()
	if err = transact(ctx, newer, name, 1, kgo.TryCommit); err != nil {
		return err
	}
	err = older.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
		return fmt.Errorf("the older producer was not fenced: %v", err)
	}
	return offsetsAre(name, []int64{2}, committed)
}

func deleteTopic(ctx context.Context) error {
	name, err := topic(ctx, "delete", 1)
	if err != nil {
		return err
	}
	if _, err = admin.DeleteTopic(ctx, name); err != nil {
		return err
	}
	return until("the deletion", func() bool {
		found, err := admin.ListTopics(ctx)
		return err == nil && !found.Has(name)
	})
}

func createPartitions(ctx context.Context) error {
	name, err := topic(ctx, "grow", 1)
	if err != nil {
		return err
	}
	made, err := admin.UpdatePartitions(ctx, 3, name)
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		return err
	}
	return until("three partitions", func() bool { return partitionsOf(ctx, name) == 3 })
}

func configs(ctx context.Context) error {
	name, err := topic(ctx, "configs", 1)
	if err != nil {
		return err
	}
	value := strconv.Itoa(123456)
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}
	altered, err := admin.AlterTopicConfigs(ctx, set, name)
	if err != nil {
		return err
	}
	if altered[0].Err != nil {
		return altered[0].Err
	}
	return until("the altered value", func() bool {
		found, err := admin.DescribeTopicConfigs(ctx, name)
		if err != nil {
			return false
		}
		return slices.ContainsFunc(found[0].Configs, func(config kadm.Config) bool {
			return config.Key == "retention.ms" && config.MaybeValue() == value
		})
	})
}

func deleteRecords(ctx context.Context) error {
	name, err := written100(ctx, "records")
	if err != nil {
		return err
	}
	before := kadm.Offsets{}
	before.AddOffset(name, 0, 30, -1)
	deleted, err := admin.DeleteRecords(ctx, before)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return err
	}
	return begins(ctx, name, 30)
}

func begins(ctx context.Context, name string, offset int64) error {
	found, err := admin.ListStartOffsets(ctx, name)
	if err != nil {
		return err
	}
	at, _ := found.Lookup(name, 0)
	return same(at.Offset, offset, "earliest offset")
}

func listOffsets(ctx context.Context) error {
	name, err := topic(ctx, "list", 1)
	if err != nil {
		return err
	}
	client, err := newClient()
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now().Add(-time.Minute)
	for _, second := range []int{0, 3, 1} {
		record := &kgo.Record{Topic: name, Value: []byte("v"),
			Timestamp: began.Add(time.Duration(second) * time.Second)}
		if err = client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	if err = begins(ctx, name, 0); err != nil {
		return err
	}
	found, err := admin.ListEndOffsets(ctx, name)
	if err != nil {
		return err
	}
	at, _ := found.Lookup(name, 0)
	if err = same(at.Offset, 3, "latest offset"); err != nil {
		return err
	}
	found, err = admin.ListMaxTimestampOffsets(ctx, name)
	if err != nil {
		return err
	}
	at, _ = found.Lookup(name, 0)
	return same(at.Offset, 1, "offset of the maximal timestamp")
}

func groups(ctx context.Context) error {
	name, err := written100(ctx, "groups")
	if err != nil {
		return err
	}
	group := prefix + "-groups"
	client, err := member("groups", name)
	if err != nil {
		return err
	}
	err = client.CommitRecords(ctx, read(client, 100, 30*time.Second)...)
	described, describeErr := admin.DescribeGroups(ctx, group)
	client.Close()
	if err = errors.Join(err, describeErr); err != nil {
		return err
	}
	if err = same(described[group].State, "Stable", "state"); err != nil {
		return err
	}
	if err = same(len(described[group].Members), 1, "members"); err != nil {
		return err
	}
	found, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return err
	}
	at, _ := found.Lookup(name, 0)
	if err = same(at.At, 100, "committed offset"); err != nil {
		return err
	}
	if err = listed(ctx, group, true); err != nil {
		return err
	}
	if _, err = admin.DeleteGroup(ctx, group); err != nil {
		return err
	}
	return listed(ctx, group, false)
}

func listed(ctx context.Context, group string, wanted bool) error {
	found, err := admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	return same(slices.Contains(found.Groups(), group), wanted, "the group is listed")
}

func deleteGroupOffsets(ctx context.Context) error {
	name, err := topic(ctx, "lost", 2)
	if err != nil {
		return err
	}
	group := prefix + "-lost"
	given := kadm.Offsets{}
	given.AddOffset(name, 0, 0, -1)
	given.AddOffset(name, 1, 0, -1)
	if err = admin.CommitAllOffsets(ctx, group, given); err != nil {
		return err
	}
	lost := kadm.TopicsSet{}
	lost.Add(name, 0)
	deleted, err := admin.DeleteOffsets(ctx, group, lost)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return err
	}
	found, err := admin.FetchOffsets(ctx, group)
	if err != nil {
		return err
	}
	left := found.Offsets()
	_, zero := left.Lookup(name, 0)
	_, one := left.Lookup(name, 1)
	return same([]bool{zero, one}, []bool{false, true}, "partitions with an offset")
}
