package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

func (s *Server) sourceRoutes() {
	server.HandleJSON(s.http, server.Route{Path: v1.PathSources, Early: true, Need: access.View, ID: "list-sources", Tag: "sources", Summary: "List sources"}, s.listSources)
	server.HandleJSON(s.http, server.Route{Method: http.MethodPost, Path: v1.PathSources + "/{source}/resync", Need: access.Operate, ID: "resync-source", Tag: "sources",
		Summary: "Resync a source", Description: "Makes the source of this host read everything again. Answers when the resync has started; last_sync shows when it is finished. For the source rest of a fleet, the fleet's store is read first."}, s.resyncSource)
}

func (s *Server) listSources(_ context.Context, in *request.Paging) (out v1.SourceList, err error) {
	out.Revision = max(s.Sources.Revision(), s.Conflicts.Revision())
	out.Items, out.Next, err = request.List(*in, request.ByName.Of("sources"), s.sources(), func(src *v1.Source) string { return src.Name })
	return out, err
}

// sources returns the sources by name.
func (s *Server) sources() []v1.Source {
	rows := map[string]v1.Source{} // All may yield a changing row twice
	for name := range s.Sources.All() {
		if row, ok := s.source(name); ok {
			rows[name] = row
		}
	}
	out := slices.AppendSeq(make([]v1.Source, 0, len(rows)), maps.Values(rows))
	slices.SortFunc(out, func(a, b v1.Source) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (s *Server) source(name string) (v1.Source, bool) {
	st, rev, ok := s.Sources.Get(name)
	if !ok {
		return v1.Source{}, false
	}
	conflicts, newest := s.conflictsOf(name)
	st.Problems = slices.Concat(st.Problems, conflicts)
	out := v1.Source{Name: st.Name, Type: st.Type, Level: sourceLevel(&st), Synced: st.Synced, Stale: st.Stale, Services: st.Services,
		Restarts: st.Restarts, Problems: server.Problems(st.Problems), Revision: max(rev, newest)}
	if st.LastSync != 0 {
		out.LastSync = request.When(time.UnixMilli(st.LastSync))
	}
	return out, true
}

// conflictsOf returns the problems of a source's services that are not in effect, sorted by name,
// and the revision of the newest. It costs O(conflicts).
func (s *Server) conflictsOf(source string) (out []vip.Problem, newest uint64) {
	for key := range s.Conflicts.All() {
		if row := s.Conflicts.Row(key); row != nil && key.Source == source {
			out = append(out, row.Value.Problem)
			newest = max(newest, row.Rev)
		}
	}
	slices.SortFunc(out, func(a, b vip.Problem) int { return strings.Compare(a.Service, b.Service) })
	return out, newest
}

func sourceLevel(st *sources.Status) string {
	switch {
	case !st.Synced && st.Stale != "":
		return v1.LevelFail
	case !st.Synced || st.Stale != "" || len(st.Problems) > 0:
		return v1.LevelWarn
	}
	return v1.LevelOK
}

type resyncInput struct {
	Source string `path:"source"`
}

func (s *Server) resyncSource(ctx context.Context, in *resyncInput) (v1.Source, error) {
	if _, ok := s.source(in.Source); !ok {
		return v1.Source{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "source \""+in.Source+"\" does not exist", "list sources: ironvip source list")
	}
	switch err := s.Resync(ctx, in.Source); {
	case errors.Is(err, fleet.ErrUnavailable):
		return v1.Source{}, request.StoreAway(err.Error(), "the last known services stay in effect; ironvip status shows the cause and the fix")
	case err != nil:
		return v1.Source{}, server.Refuse(http.StatusServiceUnavailable, v1.CodeUnavailable, err.Error(), "try again")
	}
	row, _ := s.source(in.Source)
	return row, nil
}
