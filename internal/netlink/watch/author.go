package watch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Author is the program that changed something. The zero value is unknown.
type Author struct {
	Name string // of the process, at most 15 bytes
	PID  int
}

// String returns the program in a message, or "" if it is unknown.
func (a Author) String() string {
	switch {
	case a.Name != "":
		return fmt.Sprintf("%s (pid %d)", a.Name, a.PID)
	case a.PID != 0:
		return fmt.Sprintf("a program that has ended (pid %d)", a.PID)
	}
	return ""
}

// authors finds the processes that have netlink sockets. One goroutine at a time may use it.
type authors struct {
	sockets *os.File // the list of netlink sockets in a network namespace; nil: not available
	port    uint32   // of the last question
	at      time.Time
	last    Author
}

// remembered is how long an answer is valid, so that a program that removes thousands of addresses is looked for once.
const remembered = time.Second

// openAuthors opens the list of sockets of the calling thread's network namespace.
func openAuthors() authors {
	f, _ := os.Open("/proc/thread-self/net/netlink")
	return authors{sockets: f}
}

func (a *authors) close() {
	if a.sockets != nil {
		a.sockets.Close()
	}
}

// ofRoute returns the process that has an rtnetlink socket with that port. A program that has ended is unknown.
func (a *authors) ofRoute(port uint32) Author {
	if port == 0 || a.sockets == nil {
		return Author{}
	}
	if now := time.Now(); port != a.port || now.Sub(a.at) > remembered {
		a.port, a.at, a.last = port, now, a.find(unix.NETLINK_ROUTE, port)
	}
	return a.last
}

// find returns the process with a socket. The kernel gives a process's first socket its process ID as the port. The
// inode proves that: in another PID namespace, the number is that of a different process.
func (a *authors) find(protocol int, port uint32) Author {
	inode := a.inode(protocol, port)
	if inode == "" {
		return Author{}
	}
	dir := filepath.Join("/proc", strconv.FormatUint(uint64(port), 10))
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return Author{}
	}
	for _, f := range files {
		if to, _ := os.Readlink(filepath.Join(dir, "fd", f.Name())); to != "socket:["+inode+"]" {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		return Author{Name: strings.TrimSpace(string(name)), PID: int(port)}
	}
	return Author{}
}

// inode returns the inode of the socket with a port, or "".
func (a *authors) inode(protocol int, port uint32) string {
	if _, err := a.sockets.Seek(0, io.SeekStart); err != nil {
		return ""
	}
	wantProtocol, wantPort := strconv.Itoa(protocol), strconv.FormatUint(uint64(port), 10)
	for lines := bufio.NewScanner(a.sockets); lines.Scan(); {
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		if c := strings.Fields(lines.Text()); len(c) >= 10 && c[1] == wantProtocol && c[2] == wantPort {
			return c[9]
		}
	}
	return ""
}
