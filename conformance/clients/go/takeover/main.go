// Two members by franz-go, for tests/conformance/clients/test_group_takeover.py: each processes and
// commits until the process ends, and prints what happens to it, a line each.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type changed func(context.Context, *kgo.Client, map[string][]int32)

func main() {
	bootstrap, topic, protocol := os.Args[1], os.Args[2], os.Args[3]
	for member := range 2 {
		go run(member, bootstrap, topic, protocol)
	}
	select {}
}

func run(member int, bootstrap, topic, protocol string) {
	ctx := context.Background()
	// By the classic protocol the library gives all up by itself when a heartbeat finds no broker
	// that listens, so none is due here; commits say who and of which generation it is.
	mode := []kgo.Opt{kgo.SessionTimeout(5 * time.Minute), kgo.HeartbeatInterval(2 * time.Minute)}
	if protocol == "consumer" {
		mode = []kgo.Opt{kgo.ServerSideBalancer()}
	}
	tell := func(what string) changed {
		return func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			if len(places[topic]) > 0 {
				line := fmt.Sprint(member, " ", what, " ", places[topic])
				fmt.Println(strings.NewReplacer("[", "", "]", "").Replace(line))
			}
		}
	}
	client, err := kgo.NewClient(append(mode,
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumerGroup(topic+"-readers"),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(tell("assigned")),
		kgo.OnPartitionsRevoked(tell("revoked")),
		kgo.OnPartitionsLost(tell("lost")),
	)...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		ends := map[int32]int64{}
		var last []*kgo.Record
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			fmt.Println(member, "read", r.Partition, r.Offset)
			ends[r.Partition] = r.Offset + 1
			last = append(last, r)
		})
		for len(last) > 0 {
			within, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := client.CommitRecords(within, last...)
			cancel()
			var refused *kerr.Error
			if errors.As(err, &refused) && !refused.Retriable {
				fmt.Println(member, "refused", refused.Message)
				break
			}
			if err == nil {
				for partition, offset := range ends {
					fmt.Println(member, "committed", partition, offset)
				}
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}
