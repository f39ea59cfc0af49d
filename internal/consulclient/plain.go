package consulclient

import (
	"errors"
	"fmt"
	"io"
	"net/url"
)

// Plain returns the error of a request without the request's URL: that is long, names
// parameters that nobody who reads a status has asked for, and says less than whoever
// asked can say of the question. Other errors are as they are.
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
