package consulclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/hashicorp/consul/api"
)

// NotReadyError is the error of a request that Consul could not answer yet: while its servers elect a
// leader, it delays answers or refuses requests.
type NotReadyError struct {
	cause string
	err   error
}

// Error implements error.
func (e *NotReadyError) Error() string { return e.cause }

// Unwrap returns the original error.
func (e *NotReadyError) Unwrap() error { return e.err }

// Hint returns what to do.
func (e *NotReadyError) Hint() string {
	return "check that Consul runs and has a leader: consul operator raft list-peers"
}

// Plain returns the error of a request in words, without the request's URL. The URL is long and
// contains internal parameters. The caller can describe the request better. An answer without a leader,
// and none until the context's deadline, are a *NotReadyError. Other errors are returned unchanged.
func Plain(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var status api.StatusError
	switch {
	case request != nil && err == io.EOF:
		return fmt.Errorf("the connection ended without an answer: %w", err)
	case err == context.DeadlineExceeded: // and not a dial's timeout, which names the address
		return &NotReadyError{"no answer in time: it is starting, has no leader, or is not reachable", err}
	case errors.As(err, &status) && strings.Contains(status.Body, "No cluster leader"):
		return &NotReadyError{fmt.Sprintf("answers %d: its servers have no leader yet", status.Code), err}
	}
	return err
}
