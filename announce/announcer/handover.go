package announcer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp"
	"github.com/ironvip/ironvip/internal/sockets"
)

// Kept is what the next process goes on with. docs/decisions/23 has the reasons.
type Kept struct {
	Version int       // keptVersion
	At      time.Time // when the first process without the settings was to begin
	BGP     []bgp.HandedOver
	BFD     []bfd.Kept
}

const (
	// storedConnection is the name of BGP connections in the service manager's store.
	storedConnection = "bgp"
	// nextProcess is how long BFD peers wait for packets of the next process: it starts within a second, and has the
	// settings when the agent has connected.
	nextProcess = 10 * time.Second
	// maxKept bounds the sessions in the file, in bytes: 1,000 sessions, or 100 with 10,000 prefixes.
	maxKept = 64 << 20
	// keptVersion is another one when a process of another version can't go on with a session.
	keptVersion = 1
)

// keptFile returns the file beside the socket.
func keptFile(socket string) string { return filepath.Join(filepath.Dir(socket), "sessions") }

// Keep stores sessions for the next process. A session that can't be stored ends with its connection.
func Keep(k Kept, socket string, store func(name string, c syscall.Conn) error, log *slog.Logger) {
	var stored []bgp.HandedOver
	size := 0
	for _, h := range k.BGP {
		c, ok := h.Conn.(syscall.Conn)
		err := errors.ErrUnsupported
		if ok {
			h.Cookie = sockets.Cookie(c)
			var text []byte
			if text, err = json.Marshal(h); err == nil && size+len(text) > maxKept {
				err = errors.New("the sessions before it have too many prefixes")
			}
			if err == nil {
				size += len(text)
				err = store(storedConnection, c)
			}
		}
		if err == nil {
			stored = append(stored, h)
		} else {
			log.Warn("BGP session not kept for the next process", "peer", h.Peer, "error", err)
		}
		defer h.Conn.Close() // of this process
	}
	k.Version, k.BGP = keptVersion, stored
	b, err := json.Marshal(k)
	if err == nil {
		err = os.WriteFile(keptFile(socket), b, 0o600)
	}
	if err != nil {
		log.Warn("sessions not kept for the next process", "file", keptFile(socket), "error", err)
	}
}

// Inherit returns the sessions of the earlier process, with the connections that were passed to this one. It can be called once.
// Other descriptors are closed.
func Inherit(socket string, fds []int, log *slog.Logger) (k Kept) {
	b, err := os.ReadFile(keptFile(socket))
	if err == nil {
		err = errors.Join(os.Remove(keptFile(socket)), json.Unmarshal(b, &k))
	}
	if err == nil && k.Version != keptVersion {
		err = fmt.Errorf("version %d, want %d", k.Version, keptVersion)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("sessions of the earlier process not read", "file", keptFile(socket), "error", err)
		k = Kept{}
	}
	if time.Since(k.At) > nextProcess {
		k.BFD = nil
	}
	conns := map[uint64]net.Conn{}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), storedConnection)
		c, err := net.FileConn(f) // a copy
		f.Close()
		if err != nil {
			log.Warn("descriptor of the earlier process not used", "error", err)
			continue
		}
		conns[sockets.Cookie(c.(syscall.Conn))] = c
	}
	all := k.BGP
	k.BGP = nil
	for _, h := range all {
		if h.Conn = conns[h.Cookie]; h.Conn != nil {
			delete(conns, h.Cookie)
			k.BGP = append(k.BGP, h)
		}
	}
	for _, c := range conns {
		c.Close()
	}
	return k
}
