package api

import (
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
)

func TestDebugTables(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", v1.ServicePath("default", "web"), `{"ports": [{"port": 80}], "backends": [{"address": "10.0.0.1"}]}`)
	list := decode[v1.DebugTableList](r, "GET", v1.PathDebugTables, "")
	if len(list.Items) != 2 || list.Items[0].Name != "services" || list.Items[0].Rows != 2 || list.Items[0].Revision == 0 {
		t.Errorf("%+v", list)
	}
	services := decode[v1.DebugTable](r, "GET", v1.DebugTablePath("services"), "")
	if len(services.Rows) != 2 || len(services.Rows[1]) != len(services.Columns) || services.Rows[1][0] != "web" || services.Columns[0] != "service" {
		t.Errorf("%+v", services)
	}
	a := r.ask("GET", v1.DebugTablePath("nothing"), "")
	expect.Equal(t, a.StatusCode, 404, "a table that doesn't exist: %s\n%s", a.Status, a.body)
}
