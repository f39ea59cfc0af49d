package consulclient

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"
)

// Open asks for a path such as "/v1/kv/app/" and returns the answer as it comes,
// to be decoded by whoever knows a quicker way than HashiCorp's client, and to be
// closed. Of the meta data it has the index, and whether the token kept something
// back. For what isn't there the body is nil. Any other answer than that or a good
// one is an api.StatusError, as with HashiCorp's own methods.
func (c *Client) Open(ctx context.Context, path string, params url.Values) (body io.ReadCloser, meta *api.QueryMeta, err error) {
	params = maps.Clone(params)
	maps.Copy(params, c.params)
	at := c.base
	at.Path, at.RawQuery = at.Path+path, params.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header = c.Headers()
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			return nil, nil, err
		}
		if answer.StatusCode != http.StatusNotFound {
			return nil, nil, api.StatusError{Code: answer.StatusCode, Body: strings.TrimSpace(string(text))}
		}
		answer.Body = nil
	}
	meta = &api.QueryMeta{ResultsFilteredByACLs: answer.Header.Get("X-Consul-Results-Filtered-By-ACLs") == "true"}
	if index := answer.Header.Get("X-Consul-Index"); index != "" {
		if meta.LastIndex, err = strconv.ParseUint(index, 10, 64); err != nil {
			if answer.Body != nil {
				answer.Body.Close()
			}
			return nil, nil, fmt.Errorf("the answer's index: %w", err)
		}
	}
	return answer.Body, meta, nil
}
