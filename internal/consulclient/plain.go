package consulclient

import (
	"errors"
	"fmt"
	"io"
	"net/url"
)

// Plain returns the error of a request without the request's URL. The URL is long and contains
// internal parameters. The caller can describe the request better. Other errors are returned
// unchanged.
func Plain(err error) error {
	var request *url.Error
	if !errors.As(err, &request) {
		return err
	}
	if request.Err == io.EOF {
		return fmt.Errorf("the connection ended without an answer: %w", request.Err)
	}
	return request.Err
}
