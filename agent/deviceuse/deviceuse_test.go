package deviceuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

func start(t *testing.T, device string) (u *Use, stop func()) {
	u = New(device, event.NewLog(100, time.Now), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); u.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return u, stop
}

// finds waits until an agent finds n others, which are this process.
func finds(t *testing.T, u *Use, n int) {
	t.Helper()
	wait.For(t, fmt.Sprintf("%d others", n), func() error {
		others := u.Others()
		if len(others) != n {
			return fmt.Errorf("%v", others)
		}
		for _, o := range others {
			if o.PID != os.Getpid() {
				return fmt.Errorf("found %s", o)
			}
		}
		return nil
	})
}

// Each agent finds another one, and the first one all others. When that ends, the others find each other.
func TestAgentsOfOneDevice(t *testing.T) {
	device := fmt.Sprint("test", time.Now().UnixNano()) // another run has another one
	first, stop := start(t, device)
	listens(t, device)
	_, stopOther := start(t, device+"x")
	var more []*Use
	for i := range mostOthers + 2 {
		u, _ := start(t, device)
		finds(t, u, 1)
		finds(t, first, min(i+1, mostOthers))
		more = append(more, u)
	}
	stopOther()
	stop()
	wait.For(t, "one of the others is found by those", func() error {
		total := 0
		for _, u := range more {
			n := len(u.Others())
			if n == 0 {
				return errors.New("an agent finds no other")
			}
			total += n
		}
		if n := len(more) - 1; total != n+min(n, mostOthers) {
			return fmt.Errorf("found %d", total)
		}
		return nil
	})
	events, _ := more[0].events.Since(0)
	if text := fmt.Sprint(events); !strings.Contains(text, "device_shared") || !strings.Contains(text, "device_unshared") {
		t.Error(text)
	}
}

// listens waits until an agent has the socket of a device.
func listens(t *testing.T, device string) {
	t.Helper()
	wait.For(t, "an agent listens", func() error {
		c, err := net.DialUnix("unix", nil, address(device))
		if err == nil {
			c.Close()
		}
		return err
	})
}

// An agent that comes first finds what connects, until that ends, and a connection that ends at once leaves nothing.
func TestConnectionsThatEnd(t *testing.T) {
	device := fmt.Sprint("test", time.Now().UnixNano()) // another run has another one
	u, _ := start(t, device)
	listens(t, device)
	c := must.Get(net.DialUnix("unix", nil, address(device)))(t)
	finds(t, u, 1)
	c.Close()
	finds(t, u, 0)
}
