package probe

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/vip"
)

// poller is the prober of types that need a socket and no protocol: tcp and udp. One goroutine
// waits for all sockets with epoll. A probe costs a descriptor and about 300 bytes while it runs,
// and no goroutine. The descriptor of epoll is the only one that Go's own poller knows.
type poller struct {
	report func([]done)
	epoll  *os.File
	raw    syscall.RawConn
	fd     int // of epoll
	ended  chan struct{}

	mu     sync.Mutex
	inbox  []job
	closed bool

	// Only run uses these.
	taken     []job             // from inbox, to begin
	sockets   map[int32]*socket // by descriptor
	last      int32             // id
	deadlines delayqueue.Queue[*socket]
	done      []done
	events    [256]unix.EpollEvent
	buf       [4096]byte
}

// socket is a probe that runs.
type socket struct {
	job
	fd      int
	id      int32 // tells its events from those of another socket with the descriptor
	began   time.Time
	phase   phase
	sent    int // bytes of check.Send
	matched int // bytes of check.Expect
}

// phase is what a socket waits for.
type phase uint8

const (
	connecting phase = iota
	sending
	receiving
)

func newPoller(report func([]done)) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // required by Go's poller
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{report: report, epoll: os.NewFile(uintptr(fd), "health probes"), fd: fd, ended: make(chan struct{}), sockets: make(map[int32]*socket)}
	if p.raw, err = p.epoll.SyscallConn(); err != nil {
		p.epoll.Close()
		return nil, err
	}
	return p, nil
}

// start implements prober.
func (p *poller) start(jobs []job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inbox = append(p.inbox, jobs...)
	p.interrupt()
}

// close ends the probes without a report and returns when their sockets are closed.
func (p *poller) close() {
	p.mu.Lock()
	p.closed = true
	p.interrupt()
	p.mu.Unlock()
	<-p.ended
}

// interrupt ends the wait of run. The caller holds mu.
func (p *poller) interrupt() { p.epoll.SetReadDeadline(time.Unix(1, 0)) }

func (p *poller) run() error {
	defer close(p.ended)
	defer p.epoll.Close()
	for p.take() {
		if !p.begin() {
			p.wait()
		}
		// A socket can be ready and past its deadline, if this process did not run for a while. Then
		// its answer counts.
		for p.poll() == len(p.events) {
			continue
		}
		now := time.Now()
		for s := range p.deadlines.Due(now) {
			p.finish(s, TimedOut, s.silence())
		}
		if len(p.done) > 0 {
			p.report(p.done)
			clear(p.done)
			p.done = p.done[:0]
		}
	}
	for fd := range p.sockets {
		unix.Close(int(fd))
	}
	return nil
}

// take takes the new jobs and sets the deadline of wait. It returns false after close.
func (p *poller) take() (open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken, p.inbox = p.inbox, p.taken
	_, first, _ := p.deadlines.First() // the zero time is no deadline
	p.epoll.SetReadDeadline(first)
	return !p.closed
}

// begin begins the jobs that were taken. It reports whether there were any: then the first deadline may be another one.
func (p *poller) begin() bool {
	for _, j := range p.taken {
		p.open(&socket{job: j})
	}
	begun := len(p.taken) > 0
	clear(p.taken)
	p.taken = p.taken[:0]
	return begun
}

// wait blocks until a socket is ready, the first deadline, or interrupt.
func (p *poller) wait() {
	polled := false
	p.raw.Read(func(uintptr) bool {
		if polled {
			return true
		}
		polled = true
		return p.poll() > 0
	})
}

// poll handles the sockets that are ready, and returns how many there were, at most len(p.events).
func (p *poller) poll() int {
	n, _ := unix.EpollWait(p.fd, p.events[:], 0)
	for i := range max(n, 0) {
		// A process that this one has just started has copies of its sockets until it executes another program. So epoll
		// reports sockets that were closed here.
		e := &p.events[i]
		if s := p.sockets[e.Fd]; s != nil && s.id == e.Pad {
			p.ready(s, e.Events)
		}
	}
	return n
}

// open begins a probe.
func (p *poller) open(s *socket) {
	s.began = time.Now()
	var err error
	if s.check.Type == vip.CheckUDP {
		s.fd, err = openUDP(&s.job)
	} else {
		s.fd, err = openTCP(&s.job, s.check.Send == "" && s.check.Expect == "")
	}
	if s.fd < 0 {
		outcome, reason := judge("open a socket", err)
		if failed, is := err.(pathError); is {
			outcome, reason = failed.judge()
		}
		p.done = append(p.done, done{s.t, outcome, reason, 0})
		return
	}
	p.last++
	s.id = p.last
	p.sockets[int32(s.fd)] = s
	p.deadlines.Set(s, s.began.Add(s.check.Timeout))
	if err != nil && err != unix.EINPROGRESS {
		p.fail(s, "connect", err)
		return
	}
	event := unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(s.fd), Pad: s.id}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, s.fd, &event); err != nil {
		p.finish(s, Local, "epoll_ctl: "+err.Error())
	}
}

// ready continues a probe with a socket that can connect, send or receive, or that has an error. The
// events are those of epoll, which reports an error with EPOLLERR or EPOLLHUP.
func (p *poller) ready(s *socket, events uint32) {
	switch s.phase {
	case connecting:
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			if errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
				if err == nil {
					err = syscall.Errno(errno)
				}
				p.fail(s, "connect", err)
				return
			}
		}
		if s.check.Type == vip.CheckTCP && connectedToItself(s.fd, s.t.Addr) {
			p.fail(s, "connect", unix.ECONNREFUSED)
			return
		}
		s.phase = sending
		fallthrough
	case sending:
		p.send(s)
	case receiving:
		p.receive(s)
	}
}

// send writes the rest of what the check sends.
func (p *poller) send(s *socket) {
	for s.sent < len(s.check.Send) {
		n, err := unix.Write(s.fd, []byte(s.check.Send[s.sent:]))
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return // the socket stays ready after a signal
		case err != nil:
			p.fail(s, "send", err)
			return
		}
		s.sent += n
	}
	if s.check.Type == vip.CheckTCP && s.check.Expect == "" {
		p.finish(s, OK, "")
		return
	}
	s.phase = receiving
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd), Pad: s.id}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, s.fd, &event); err != nil {
		p.finish(s, Local, "epoll_ctl: "+err.Error())
	}
}

// receive reads a part of the answer: at most one buffer, so that a target that sends much can't
// hold up others.
func (p *poller) receive(s *socket) {
	n, err := unix.Read(s.fd, p.buf[:])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
	case err != nil:
		p.fail(s, "receive", err)
	case n == 0 && s.check.Type == vip.CheckTCP:
		p.finish(s, Reset, "connection closed before the expected answer")
	default:
		s.matched = match(s.check.Expect, s.matched, p.buf[:n])
		switch {
		case s.matched < 0:
			p.finish(s, BadAnswer, unexpected(p.buf[:n], s.check.Expect))
		case s.matched == len(s.check.Expect):
			p.finish(s, OK, "")
		case s.check.Type == vip.CheckUDP: // an answer is one datagram
			p.finish(s, BadAnswer, unexpected(p.buf[:n], s.check.Expect))
		}
	}
}

func (p *poller) fail(s *socket, operation string, err error) {
	outcome, reason := judge(operation, err)
	p.finish(s, outcome, reason)
}

// finish ends a probe and prepares its report. Closing the socket removes it from epoll.
func (p *poller) finish(s *socket, outcome Outcome, reason string) {
	p.deadlines.Drop(s)
	delete(p.sockets, int32(s.fd))
	unix.Close(s.fd)
	p.done = append(p.done, done{s.t, outcome, clip(reason), time.Since(s.began)})
}

// silence returns the reason for a timeout.
func (s *socket) silence() string {
	what := "no complete answer"
	switch {
	case s.phase == connecting && s.check.Type == vip.CheckTCP:
		what = "no connection"
	case s.matched == 0:
		what = "no answer"
	}
	return what + " within " + s.check.Timeout.String()
}
