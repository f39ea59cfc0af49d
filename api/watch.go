package api

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
)

type watchServicesInput struct {
	Selection
	Service []string `query:"service,explode" doc:"this service: name or namespace/name; repeatable; absent: all"`
}

func (s *Server) watchServices(_ context.Context, in *watchServicesInput) (*server.Stream, error) {
	names := map[vip.ServiceKey]bool{}
	for _, name := range in.Service {
		key, err := vip.ParseServiceKey(name)
		if err != nil {
			return nil, server.BadRequest(err.Error(), "use name or namespace/name", vip.Problem{Code: vip.CodeInvalid, Field: "query.service", Message: err.Error()})
		}
		names[key] = true
	}
	end, err := s.http.OpenStream()
	if err != nil {
		return nil, err
	}
	return server.NewStream(func(h huma.Context) {
		defer end()
		h.SetHeader("Content-Type", ndjson)
		h.SetStatus(http.StatusOK)
		w := &serviceWatcher{s: s, in: in, names: names, sent: map[vip.ServiceKey]uint64{}, seed: maphash.MakeSeed(), h: h}
		w.run()
	}), nil
}

// serviceWatcher sends the changes of services to one caller. It costs O(changed services) per
// change, and 50 bytes of memory for each selected service.
type serviceWatcher struct {
	s     *Server
	in    *watchServicesInput
	names map[vip.ServiceKey]bool   // empty: all
	sent  map[vip.ServiceKey]uint64 // hashes of the lines that the caller has
	seed  maphash.Seed
	h     huma.Context
}

// run ends when the caller is gone, or is no longer permitted.
func (w *serviceWatcher) run() {
	feeds := watchStatus(w.s.tables())
	defer feeds.close()
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for synced := false; ; synced = true {
		changes := w.s.changes() // before looking
		services, _ := feeds.changed()
		for i, key := range slices.SortedFunc(maps.Keys(services), compareKeys) {
			if i%100 == 0 {
				server.Allow(w.h.Context(), answerTime)
			}
			if w.look(key) != nil {
				return
			}
		}
		if !synced && w.send(v1.ServiceChange{Synced: true}) != nil {
			return
		}
		w.flush()
		for happened := ticked; happened == ticked; {
			if happened = changes.wait(w.h.Context().Done(), tick.C); happened == ended || happened == ticked && !w.keepAlive() {
				return
			}
		}
	}
}

// look sends a service that may have changed. It compares lines, because some changes raise no
// revision: a part of the status that ends, such as an override, has none.
func (w *serviceWatcher) look(key vip.ServiceKey) error {
	if len(w.names) > 0 && !w.names[key] {
		return nil
	}
	last, had := w.sent[key]
	row := w.s.Services.Row(key)
	svc, exists := w.s.service(key)
	switch {
	case row != nil && exists && w.in.selects(&row.Value):
		line, err := json.Marshal(v1.ServiceChange{Service: &svc})
		hash := maphash.Bytes(w.seed, line)
		if err != nil || had && last == hash {
			return err
		}
		w.sent[key] = hash
		return w.write(line)
	case had:
		delete(w.sent, key)
		return w.send(v1.ServiceChange{Deleted: key.String()})
	}
	return nil
}

func (w *serviceWatcher) send(c v1.ServiceChange) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return w.write(line)
}

func (w *serviceWatcher) write(line []byte) error {
	_, err := w.h.BodyWriter().Write(append(line, '\n'))
	return err
}

// keepAlive returns whether the caller is still there and permitted.
func (w *serviceWatcher) keepAlive() bool {
	server.Allow(w.h.Context(), answerTime)
	_, err := fmt.Fprintln(w.h.BodyWriter())
	w.flush()
	return err == nil && server.StillPermitted(w.h.Context())
}

func (w *serviceWatcher) flush() {
	if f, ok := w.h.BodyWriter().(http.Flusher); ok {
		f.Flush()
	}
}
