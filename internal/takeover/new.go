package takeover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/internal/sockets"
)

// ErrNoAgent means that there is no running agent, or that it ended at this moment.
var ErrNoAgent = errors.New("no agent to take over from")

// RefusedError means that the running agent refuses the request.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return "take over refused: " + e.Why }

// ResumedError means that the other agent has waited long enough and goes on. This process must end.
type ResumedError struct{ Why string }

func (e *ResumedError) Error() string { return "the running agent goes on: " + e.Why }

// Predecessor is the running agent, as the process that takes over sees it. The caller closes it.
type Predecessor struct {
	*conversation
	unix *net.UnixConn

	beating context.CancelFunc
	beats   sync.WaitGroup
	bye     chan Farewell // has room for one
	over    chan struct{} // closed at the end of Run
	resumed string        // the result of Run: why the other one goes on; "": it doesn't
}

// RequestFrom asks the agent that listens at path for its listening sockets, and adds them to set. The
// agent has then released the state directory, and accepts clients until Ready. The problems are
// those of set.Receive. Errors: ErrNoAgent, *RefusedError and others.
func RequestFrom(ctx context.Context, path string, set *sockets.Set) (p *Predecessor, problems []error, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil, ErrNoAgent
	case err != nil:
		return nil, nil, err
	}
	p = &Predecessor{conversation: converse(conn), unix: conn.(*net.UnixConn), bye: make(chan Farewell, 1), over: make(chan struct{})}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if problems, err = p.request(set); err != nil {
		p.Close()
		return nil, problems, err
	}
	beat, cancel := context.WithCancel(context.Background())
	p.beating = cancel
	p.beats.Go(func() { p.beat(beat) })
	return p, problems, nil
}

func (p *Predecessor) request(set *sockets.Set) (problems []error, err error) {
	_ = p.conn.SetDeadline(time.Now().Add(stopTime))
	if _, err := p.conn.Write([]byte(hello)); err != nil {
		return nil, ErrNoAgent
	}
	line, err := receiveLine(p.conn)
	if len(line) == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return nil, ErrNoAgent
	}
	if err != nil {
		return nil, err
	}
	first, err := parse(line)
	switch {
	case err != nil:
		return nil, err
	case first.Refused != "":
		return nil, &RefusedError{first.Refused}
	case !first.Sockets:
		return nil, fmt.Errorf("unknown answer %q", line)
	}
	if problems, err = set.Receive(p.unix); err != nil {
		return problems, err
	}
	for {
		m, err := p.receive(time.Now().Add(stopTime))
		switch {
		case err != nil:
			return problems, err
		case m.Start:
			return problems, nil
		}
	}
}

// beat gives signs of life.
func (p *Predecessor) beat(ctx context.Context) {
	tick := time.NewTicker(aliveTime)
	defer tick.Stop()
	for p.send(message{Alive: true}) == nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Run reads what the other agent sends, until it has ended the conversation or ctx ends. It returns nil,
// or a *ResumedError. Call it once.
func (p *Predecessor) Run(ctx context.Context) error {
	defer close(p.over)
	defer context.AfterFunc(ctx, func() { p.conn.Close() })()
	for {
		m, err := p.receive(time.Time{})
		switch {
		case err != nil:
			return nil
		case m.Resumed != "":
			p.resumed = m.Resumed
			return &ResumedError{m.Resumed}
		case m.Bye != nil:
			select {
			case p.bye <- *m.Bye:
			default:
			}
		}
	}
}

// Ready reports that this process serves everything, and returns when the other one accepts no more
// clients. Run must be active. An error that is a
// *ResumedError means that this process must end; after any other, it is the agent.
func (p *Predecessor) Ready(ctx context.Context) (Farewell, error) {
	p.stopBeats()
	_ = p.send(message{Ready: true}) // with an error, Run ends, too
	timeout := time.NewTimer(byeTime)
	defer timeout.Stop()
	select {
	case b := <-p.bye:
		return b, nil
	case <-ctx.Done():
		return Farewell{}, ctx.Err()
	case <-timeout.C:
		return Farewell{}, errors.New("the replaced agent does not answer")
	case <-p.over:
	}
	select {
	case b := <-p.bye:
		return b, nil
	default:
	}
	if p.resumed != "" {
		return Farewell{}, &ResumedError{p.resumed}
	}
	return Farewell{}, errors.New("the replaced agent has ended before")
}

func (p *Predecessor) stopBeats() {
	if p.beating != nil {
		p.beating()
		p.beats.Wait()
	}
}

// Close ends the conversation. The other agent goes on if it has not answered to Ready.
func (p *Predecessor) Close() {
	p.conn.Close()
	p.stopBeats()
}
