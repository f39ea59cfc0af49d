package services

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/vip"
)

type watchServicesInput struct {
	Selection
	Service []string `query:"service,explode" doc:"this service: name or namespace/name; repeatable; absent: all"`
	View    string   `query:"view" enum:"full,summary" default:"full" doc:"full: each service with its backends; summary: each as a row of a list"`
}

func (h *Handlers) watchServices(ctx context.Context, in *watchServicesInput) (*server.Stream, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	names := map[vip.ServiceKey]bool{}
	for _, name := range in.Service {
		key, err := request.ServiceParameter(name)
		if err != nil {
			return nil, err
		}
		names[key] = true
	}
	return request.StreamLines(ctx, h.http, func(to request.Lines) {
		w := &serviceWatcher{Lines: to, h: h, in: in, names: names, sent: map[vip.ServiceKey]uint64{}, seed: maphash.MakeSeed()}
		w.run()
	})
}

// serviceWatcher sends the changes of services to one caller. It costs O(changed services) per change, and
// 50 bytes of memory for each selected service.
type serviceWatcher struct {
	request.Lines
	h     *Handlers
	in    *watchServicesInput
	names map[vip.ServiceKey]bool   // empty: all
	sent  map[vip.ServiceKey]uint64 // hashes of the lines that the caller has
	seed  maphash.Seed
}

// pace is the least time between two looks at the changes. A service that changes all the time, or that
// passes through the stages of the pipeline, is looked at once in it, whatever the number of its changes.
const pace = 20 * time.Millisecond

// run ends when the caller is gone, or is no longer permitted.
func (w *serviceWatcher) run() {
	feed := w.h.Tables.Revisions.Watch()
	defer feed.Close()
	for synced := false; ; synced = true {
		changed := w.h.Tables.Revisions.Changed() // before looking
		services := make(map[vip.ServiceKey]struct{})
		feed.Each(func(k *vip.ServiceKey) { services[*k] = struct{}{} })
		for i, key := range slices.SortedFunc(maps.Keys(services), vip.ServiceKey.Compare) {
			if i%100 == 0 {
				w.Allow(0)
			}
			if w.look(key) != nil {
				return
			}
		}
		if !synced && w.Out.Encode(v1.ServiceChange{Synced: true}) != nil {
			return
		}
		w.Flush()
		if !backoff.Sleep(w.H.Context(), pace) || !w.Wait(changed) {
			return
		}
	}
}

// look sends a service that may have changed. It compares lines, because a row of a list does not show
// every change of a service.
func (w *serviceWatcher) look(key vip.ServiceKey) error {
	if len(w.names) > 0 && !w.names[key] {
		return nil
	}
	last, had := w.sent[key]
	row := w.h.Tables.Services.Row(key)
	var change v1.ServiceChange
	exists := row != nil && w.in.selects(&row.Value)
	if exists {
		change, exists = w.newest(key)
	}
	switch {
	case exists:
		line, err := json.Marshal(change)
		hash := maphash.Bytes(w.seed, line)
		if err != nil || had && last == hash {
			return err
		}
		w.sent[key] = hash
		_, err = w.H.BodyWriter().Write(append(line, '\n'))
		return err
	case had:
		delete(w.sent, key)
		return w.Out.Encode(v1.ServiceChange{Deleted: key.String()})
	}
	return nil
}

// newest returns a service in the form that the caller wants.
func (w *serviceWatcher) newest(key vip.ServiceKey) (v1.ServiceChange, bool) {
	if w.in.View == "summary" {
		row, exists := w.h.Summary(key)
		return v1.ServiceChange{Summary: &row}, exists
	}
	svc, exists := w.h.Service(key)
	return v1.ServiceChange{Service: &svc}, exists
}
