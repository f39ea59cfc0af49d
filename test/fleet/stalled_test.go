//go:build system

package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/client"
)

// A writer is stalled while Consul has its transaction: the newest entry of the log is its own, and
// it doesn't know that. The others write over it, with fewer or with more entries than the log
// keeps. It then finds the answer, or none.
func TestStalledWriter(t *testing.T) {
	t.Parallel()
	l := newLab(t, shape{servers: 1, reuse: time.Hour}).record()
	for _, others := range []int{10, 100} {
		l.scenario(t, fmt.Sprintf("%d entries by others", others), func() { l.stalledWriter(l.agents[0], others, false) })
		l.scenario(t, fmt.Sprintf("%d entries by others, and a lost answer", others), func() { l.stalledWriter(l.agents[0], others, true) })
	}
}

// inFlight is the number of writes that wait when their writer is stalled. The first one is a
// transaction of its own.
const inFlight = 4

func (l *lab) stalledWriter(a *agent, others int, lost bool) {
	l.t.Helper()
	service := func(i int) string { return fmt.Sprintf("inflight-%d", i%inFlight) }
	var writing sync.WaitGroup
	for round := 0; ; round++ { // until the transaction was sent before the agent was stalled
		l.servers[0].Pause()
		for i := range inFlight {
			writing.Go(func() { l.put(context.Background(), a, service(i), Condition{}) })
		}
		l.awaitUnread(a)
		l.must("stall", a.proc.Pause())
		if lost {
			l.cut(a)
		}
		l.servers[0].Continue()
		if l.servers[0].For(l.t).WaitReady(); l.newest().Node == a.name {
			break
		}
		if round == 10 {
			l.t.Fatal("no transaction was in flight")
		}
		l.must("revive", a.proc.Resume())
		l.heal(a)
		writing.Wait()
	}
	before := l.newest()
	rest := l.others(a)
	for i := range others {
		b := rest[i%len(rest)]
		_, err := l.put(context.Background(), b, service(i), Condition{})
		for tries := 1; tries < 5 && conflicts(err); tries++ { // it has not seen the stalled host's write yet
			_, err = l.put(context.Background(), b, service(i), Condition{})
		}
		if err != nil {
			l.t.Errorf("%s writes while %s is stalled: %v", b.name, a.name, err)
		}
	}
	if now := l.newest(); now.Seq < before.Seq+uint64(others) {
		l.t.Errorf("the log is at %d after %d writes, was at %d", now.Seq, others, before.Seq)
	}
	l.must("revive", a.proc.Resume())
	writing.Wait()
	l.heal(a)
	l.allWrite(l.agents)
}

// conflicts reports whether a write met another host's, and was not done.
func conflicts(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == http.StatusConflict
}

// newest returns the log's newest entry.
func (l *lab) newest() (head struct {
	Seq  uint64
	Node string
}) {
	l.t.Helper()
	pair, _, err := l.servers[0].Client.KV().Get("ironvip/v2/log/head", query(context.Background()))
	l.must("the head of the log", err)
	l.must("the head of the log", json.Unmarshal(pair.Value, &head))
	return head
}

// awaitUnread waits until the stalled Consul has received a request of the agent and not read it.
func (l *lab) awaitUnread(a *agent) {
	l.t.Helper()
	ip := a.node.Addr4.As4()
	remote := fmt.Sprintf("%02X%02X%02X%02X:", ip[3], ip[2], ip[1], ip[0])
	l.eventually("a request of "+a.name+" is in flight", func(context.Context) error {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/tcp", l.servers[0].Pid()))
		if err != nil {
			return err
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			// "sl local_address rem_address st tx_queue:rx_queue ..."
			field := strings.Fields(lines.Text())
			if len(field) > 4 && strings.HasPrefix(field[2], remote) && !strings.HasSuffix(field[4], ":00000000") {
				return nil
			}
		}
		return fmt.Errorf("nothing of %s is unread", a.name)
	})
}
