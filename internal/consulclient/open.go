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

// Open gets a path such as "/v1/kv/app/" and returns the undecoded answer. The caller decodes it,
// possibly faster than HashiCorp's client, and closes it. The metadata contain only the index and
// whether the token's permissions removed results. The body is nil if the path does not exist. For
// other status codes the error is an api.StatusError, as with HashiCorp's methods.
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
