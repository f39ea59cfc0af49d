package probe

import (
	"errors"
	"fmt"
	"syscall"
)

// judge returns the outcome of a system call's error, and the reason.
//
// A lack of descriptors, memory or ports on this host is no evidence against a target. Without a
// route, or with a local firewall that refuses, the target is Unreachable, although the cause is on
// this host: the clients' traffic has no other way. The caller has to notice when all targets
// become unreachable at once.
func judge(operation string, err error) (Outcome, string) {
	return outcomeOf(err), operation + ": " + errorText(err)
}

func outcomeOf(err error) Outcome {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return BadAnswer
	}
	switch errno {
	case syscall.ECONNREFUSED:
		return Refused
	case syscall.ETIMEDOUT:
		return TimedOut
	case syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE:
		return Reset
	case syscall.EMFILE, syscall.ENFILE:
		return NoDescriptors
	case syscall.ENOMEM, syscall.ENOBUFS, syscall.EAGAIN,
		syscall.EADDRNOTAVAIL, syscall.EADDRINUSE, syscall.EAFNOSUPPORT:
		return Local
	}
	return Unreachable
}

// judgeOwn returns the outcome of an error that can only be a fault of this host, and the reason.
func judgeOwn(operation string, err error) (Outcome, string) {
	if o := outcomeOf(err); o.IsLocal() {
		return o, operation + ": " + err.Error()
	}
	return Local, operation + ": " + err.Error()
}

// errorText returns the text of a system call's error without the wrapping, which repeats addresses
// and operations.
func errorText(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// match compares the next part of an answer with what is expected at its beginning, of which the
// first matched bytes have already been received. It returns the new number, or -1 if the answer
// differs. Bytes after the expected ones are ignored.
func match(expect string, matched int, part []byte) int {
	n := min(len(part), len(expect)-matched)
	if string(part[:n]) != expect[matched:matched+n] {
		return -1
	}
	return matched + n
}

// unexpected returns the reason for an answer that does not match.
func unexpected(answer []byte, expect string) string {
	const shown = 24
	return fmt.Sprintf("answer %q does not begin with %q", answer[:min(len(answer), shown)], expect[:min(len(expect), shown)])
}
