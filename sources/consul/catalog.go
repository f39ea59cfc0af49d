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
)

// catalog is what the source asks of Consul.
type catalog interface {
	// list returns the names of the services that are ours, with instances.
	list(ctx context.Context, q question) (names []string, a answer, err error)
	// instances returns the instances of one of them that are ours.
	instances(ctx context.Context, name string, q question) (all []instance, a answer, err error)
	// closeIdle closes connections on which nothing is asked.
	closeIdle()
}

// question says how to ask.
type question struct {
	index uint64        // hold the question until something is newer; 0: don't
	wait  time.Duration // at most so long
}

// answer is what comes with every answer.
type answer struct {
	index    uint64
	filtered bool // something was left out that the token may not see
	streamed bool // of Consul's streams, which don't say whether something was left out
}

// client is the catalog of a real Consul. The list has connections of its own:
// where there are not enough for all services, it must not wait for one.
type client struct {
	lists, services           *consulclient.Client
	closeLists, closeServices func()
	o                         *Options
}

func newClient(o *Options) (c *client, err error) {
	c = &client{o: o}
	if c.lists, c.closeLists, err = consulclient.New(o.Config.Config); err == nil {
		c.services, c.closeServices, err = consulclient.New(o.Config.Config)
	}
	return c, err
}

func (c *client) closeIdle() {
	c.closeLists()
	c.closeServices()
}

// list leaves it to Consul to pick, so that a large catalog of others' services
// is not sent again and again. Servers that are too old for that send all.
func (c *client) list(ctx context.Context, q question) (names []string, a answer, err error) {
	filter := `ServiceKind == ""`
	if c.o.Tag != "" {
		filter += " and " + strconv.Quote(c.o.Tag) + " in ServiceTags"
	}
	var tags map[string][]string
	if a, err = c.ask(ctx, c.lists, "/v1/catalog/services", &tags, q, &api.QueryOptions{Filter: filter}); err != nil {
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
	if a, err = c.ask(ctx, c.services, "/v1/health/service/"+name, &all, q, &api.QueryOptions{}); err != nil {
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

// ask asks one question.
func (c *client) ask(ctx context.Context, of *consulclient.Client, path string, into any, q question, o *api.QueryOptions) (answer, error) {
	o.AllowStale, o.WaitIndex, o.WaitTime = c.o.AllowStale, q.index, q.wait
	limit := c.o.timing.answer
	if q.index != 0 {
		limit += q.wait + q.wait/16 // Consul adds up to a sixteenth
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
	defer cancel()
	meta, err := of.Raw().Query(path, into, o.WithContext(ctx))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		return answer{}, c.explain(err)
	}
	return answer{index: meta.LastIndex, filtered: meta.ResultsFilteredByACLs, streamed: meta.QueryBackend == api.QueryBackendStreaming}, nil
}

// explain says what an error of the API means.
func (c *client) explain(err error) error {
	var status api.StatusError
	if errors.As(err, &status) {
		return fmt.Errorf("consul answers %d: %s", status.Code, status.Body)
	}
	return consulclient.Plain(err)
}
