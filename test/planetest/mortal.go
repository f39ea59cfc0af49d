//go:build linux

package planetest

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// mortal is an agent that is killed at one of its writes to the kernel.
type mortal struct {
	mu   sync.Mutex
	left int  // number of writes until then
	done bool // the kernel gets the last write, but the agent doesn't get the answer
}

var errKilled = errors.New("the agent is no more")

// never is more writes than a storm has.
const never = 1 << 40

func (m *mortal) dead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left <= 0
}

// kill makes the agent die after a number of writes, unless it is dead.
func (m *mortal) kill(after int, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left > 0 {
		m.left, m.done = after, done
	}
}

// spend counts n writes. It returns how many of them reach the kernel, and whether the agent dies at them.
func (m *mortal) spend(n int) (may int, dies bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left <= 0 {
		return 0, true
	}
	may = min(n, m.left)
	if m.left -= n; m.left <= 0 && !m.done {
		may--
	}
	return may, m.left <= 0
}

// intercept is a netlink.Interceptor.
func (m *mortal) intercept(b []byte, write bool, send func([]byte) error) error {
	if !write {
		if m.dead() {
			return errKilled
		}
		return send(b)
	}
	ends := endsOfWrites(b)
	may, dies := m.spend(len(ends))
	if !dies {
		return send(b)
	}
	if may > 0 {
		_ = send(b[:ends[may-1]])
	}
	return errKilled
}

// endsOfWrites returns where each write of a send ends. A transaction of nftables is one.
func endsOfWrites(b []byte) (ends []int) {
	for at := 0; at < len(b); {
		h, _, rest, err := netlink.NextMessage(b[at:])
		if err != nil || h.Type == unix.NFNL_MSG_BATCH_BEGIN {
			return append(ends, len(b))
		}
		at = len(b) - len(rest)
		ends = append(ends, at)
	}
	return ends
}
