package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/text"
)

// catalog is the part of Consul's catalog API that the source uses.
type catalog interface {
	// list returns the names of our services with instances.
	list(ctx context.Context, q question) (names []string, a answer, err error)
	// instances returns our instances of one service.
	instances(ctx context.Context, name string, q question) (all []instance, a answer, err error)
	// closeIdle closes idle connections.
	closeIdle()
}

// question holds the parameters of a query.
type question struct {
	index uint64        // make it a blocking query for a newer index; 0: answer at once
	wait  time.Duration // the maximum wait of a blocking query
}

// answer holds the metadata of every answer.
type answer struct {
	index    uint64
	filtered bool // the token's permissions removed results
	streamed bool // from Consul's streaming backend, which does not report removed results
}

// client is the catalog of a real Consul.
type client struct {
	*api.Client
	close func() // closes idle connections
	o     *Options
}

func newClient(o *Options) (c *client, err error) {
	c = &client{o: o}
	c.Client, c.close, err = consulclient.New(o.Config.Config)
	return c, err
}

func (c *client) closeIdle() { c.close() }

// list lets Consul filter the services, so that a large catalog of other services is not sent again
// and again. Older servers ignore the filter and send all services.
func (c *client) list(ctx context.Context, q question) (names []string, a answer, err error) {
	filter := `ServiceKind == ""`
	if c.o.Tag != "" {
		filter += " and " + strconv.Quote(c.o.Tag) + " in ServiceTags"
	}
	var tags map[string][]string
	if a, err = c.ask(ctx, "/v1/catalog/services", &tags, q, &api.QueryOptions{Filter: filter}); err != nil {
		return nil, a, err
	}
	if tags == nil {
		return nil, a, errors.New("consul answered with nothing")
	}
	for name, of := range tags {
		if c.o.Tag == "" && slices.Contains(c.o.Services, name) || c.o.Tag != "" && slices.Contains(of, c.o.Tag) {
			names = append(names, name)
		}
	}
	return names, a, nil
}

func (c *client) instances(ctx context.Context, name string, q question) (all []instance, a answer, err error) {
	if a, err = c.ask(ctx, "/v1/health/service/"+name, &all, q, &api.QueryOptions{}); err != nil {
		return nil, a, err
	}
	if all == nil {
		return nil, a, errors.New("consul answered with nothing")
	}
	if c.o.Tag != "" {
		all = slices.DeleteFunc(all, func(i instance) bool { return !slices.Contains(i.Service.Tags, c.o.Tag) })
	}
	return all, a, nil
}

// ask sends one query.
func (c *client) ask(ctx context.Context, path string, into any, q question, o *api.QueryOptions) (answer, error) {
	o.AllowStale, o.WaitIndex, o.WaitTime = c.o.AllowStale, q.index, q.wait
	limit := c.o.timing.answer
	if q.index != 0 {
		limit += q.wait + q.wait/16 // Consul adds up to a sixteenth
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	meta, err := c.Raw().Query(path, into, o.WithContext(ctx))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		return answer{}, c.explain(err)
	}
	return answer{index: meta.LastIndex, filtered: meta.ResultsFilteredByACLs, streamed: meta.QueryBackend == api.QueryBackendStreaming}, nil
}

// explain returns the API's error with its meaning.
func (c *client) explain(err error) error {
	var status api.StatusError
	if errors.As(err, &status) {
		return fmt.Errorf("consul answers %d: %s", status.Code, text.Clip(status.Body, 256))
	}
	return consulclient.Plain(err)
}
