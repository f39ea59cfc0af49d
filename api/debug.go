package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/status"
)

func (s *Server) debugRoutes() {
	server.HandleJSON(s.http, server.Route{Path: v1.PathDebugTables, ID: "list-debug-tables", Tag: "debug",
		Summary: "List the tables of the pipeline"}, s.listDebugTables)
	server.HandleJSON(s.http, server.Route{Path: v1.PathDebugTables + "/{table}", ID: "get-debug-table", Tag: "debug",
		Summary: "Get a table of the pipeline as text", Description: "Its columns may change between versions."}, s.getDebugTable)
}

func (s *Server) listDebugTables(context.Context, *struct{}) (v1.DebugTableList, error) {
	return v1.DebugTableList{Items: convert(s.Tables, func(t status.DebugTable) v1.DebugTableInfo {
		return v1.DebugTableInfo{Name: t.Name, Rows: t.Len(), Revision: t.Revision()}
	})}, nil
}

type debugTableInput struct {
	Table string `path:"table"`
}

func (s *Server) getDebugTable(_ context.Context, in *debugTableInput) (v1.DebugTable, error) {
	names := make([]string, len(s.Tables))
	for i, t := range s.Tables {
		if names[i] = t.Name; t.Name == in.Table {
			return v1.DebugTable{Name: t.Name, Revision: t.Revision(), Columns: t.Columns, Rows: t.Rows()}, nil
		}
	}
	return v1.DebugTable{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "table \""+in.Table+"\" does not exist", "use one of "+strings.Join(names, ", "))
}
