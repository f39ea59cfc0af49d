//go:build linux

package wire

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/must"
)

// A full queue is an error of its own and counted, a signal is no error, and others are the system's.
func TestSendErrors(t *testing.T) {
	r, w, err := os.Pipe()
	must.Succeed(t, err)
	defer r.Close()
	var answers []error
	s := &Socket{file: w, sendto: func(int, []byte, int, unix.Sockaddr) error {
		err := answers[0]
		answers = answers[1:]
		return err
	}}
	defer s.Close()
	if s.raw, err = w.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		answers []error
		want    error
		busy    uint64
	}{
		{[]error{nil}, nil, 0},
		{[]error{unix.EINTR, unix.EINTR, nil}, nil, 0},
		{[]error{unix.ENOBUFS}, ErrBusy, 1},
		{[]error{unix.EAGAIN}, ErrBusy, 2},
		{[]error{unix.EINTR, unix.ENETDOWN}, unix.ENETDOWN, 2},
		{[]error{nil}, nil, 2},
	} {
		answers = c.answers
		if err := s.Send(1, make([]byte, 60)); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%v: %v, want %v", c.answers, err, c.want)
		}
		if len(answers) > 0 || s.Busy() != c.busy {
			t.Errorf("%v: %d answers are left, busy %d times, want %d", c.answers, len(answers), s.Busy(), c.busy)
		}
	}
}
