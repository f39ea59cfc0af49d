package api

import (
	"context"
	"net/http"
	"strings"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/status"
)

func (s *Server) debugRoutes() {
	register(s, operation{method: http.MethodGet, path: v1.PathDebugTables, id: "list-debug-tables", tag: "debug",
		summary: "List the tables of the pipeline"}, s.listDebugTables)
	register(s, operation{method: http.MethodGet, path: v1.PathDebugTables + "/{table}", id: "get-debug-table", tag: "debug",
		summary: "Get a table of the pipeline as text", description: "Its columns may change between versions."}, s.getDebugTable)
}

type debugTablesOutput struct{ Body v1.DebugTableList }

func (s *Server) listDebugTables(context.Context, *struct{}) (*debugTablesOutput, error) {
	out := &debugTablesOutput{Body: v1.DebugTableList{Items: make([]v1.DebugTableInfo, len(s.Tables))}}
	for i, t := range s.Tables {
		out.Body.Items[i] = debugTableInfo(&t)
	}
	return out, nil
}

func debugTableInfo(t *status.DebugTable) v1.DebugTableInfo {
	return v1.DebugTableInfo{Name: t.Name, Rows: t.Len(), Revision: t.Revision()}
}

type debugTableInput struct {
	Table string `path:"table"`
}

type debugTableOutput struct{ Body v1.DebugTable }

func (s *Server) getDebugTable(_ context.Context, in *debugTableInput) (*debugTableOutput, error) {
	names := make([]string, len(s.Tables))
	for i, t := range s.Tables {
		if names[i] = t.Name; t.Name == in.Table {
			return &debugTableOutput{Body: v1.DebugTable{Name: t.Name, Revision: t.Revision(), Columns: t.Columns, Rows: t.Rows()}}, nil
		}
	}
	return nil, refuse(http.StatusNotFound, v1.CodeNotFound, "table \""+in.Table+"\" does not exist", "use one of "+strings.Join(names, ", "))
}
