package spec

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// Rows are the rows of fields in `ironvip service get`, in their order.
var Rows = []string{"balance", "timeouts", "limits", "traffic", "health", "clients", "proxy protocol"}

// Row returns the text of a row for a service whose defaults are stated, as FromService states them:
// "external local, prefers same-zone". It is "" if all fields of the row have their defaults. List
// returns the text of a list.
func (s *Service) Row(row string, list func([]string) string) string {
	out := ""
	for i := range Fields {
		f := &Fields[i]
		if f.Row != row {
			continue
		}
		_, def, _ := f.Document()
		text := textOf(f.Of(s), list)
		if text == "" || text == strings.Trim(def, "`\"") && !f.Always {
			continue
		}
		shown := fmt.Sprintf(cmp.Or(f.Shown, "%s"), text)
		if out != "" && shown[0] != ' ' {
			out += ", "
		}
		out += shown
	}
	return out
}

// textOf returns the text for people of the value that field points to, "" for none.
func textOf(field any, list func([]string) string) string {
	v := reflect.ValueOf(field).Elem()
	switch {
	case v.Kind() == reflect.Slice:
		return list(v.Interface().([]string))
	case v.Kind() == reflect.Pointer && v.IsNil():
		return ""
	}
	return fmt.Sprint(v)
}

// String returns the timeout.
func (a *Affinity) String() string {
	return cmp.Or(a.Timeout, new(Duration(vip.DefaultAffinity))).String()
}

// String returns what is probed, and how often: "http /healthz at port 8080 every 2s".
func (c *HealthCheck) String() string {
	out := strings.TrimSpace(c.Type + " " + c.Path)
	if c.Port != 0 {
		out += fmt.Sprintf(" at port %d", c.Port)
	}
	if c.Interval != nil {
		out += " every " + c.Interval.String()
	}
	return out
}
