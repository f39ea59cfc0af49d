package nodes

import (
	"cmp"
	"context"
	"slices"

	"github.com/ironvip/ironvip/api/request"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
)

type compareChecksInput struct {
	request.LongPaging
	Service []string `query:"service,explode" maxItems:"100" doc:"of these services only: \"name\" or \"namespace/name\""`
}

// compareChecks reads the rows of all nodes from the store for each page, and costs O(services) and
// O(backends) of the services of the page.
func (h *handlers) compareChecks(ctx context.Context, in *compareChecksInput) (out v1.CheckComparisonList, err error) {
	last, err := checkOrder.After(request.Paging(in.LongPaging))
	if err != nil {
		return out, err
	}
	var services []*vip.Service
	for _, name := range in.Service {
		key, err := request.ServiceParameter(name)
		if err != nil {
			return out, err
		}
		row := h.Tables.Services.Row(key)
		if row == nil {
			return out, request.NoService(key)
		}
		services = append(services, &row.Value)
	}
	if len(in.Service) == 0 {
		for _, service := range h.Tables.Services.All() {
			services = append(services, &service)
		}
	}
	services = slices.DeleteFunc(services, func(v *vip.Service) bool { return in.Cursor != "" && v.Key.Compare(last.Backend.Service) < 0 })
	slices.SortFunc(services, func(a, b *vip.Service) int { return a.Key.Compare(b.Key) })
	rows, err := h.CompareChecks(ctx, services)
	if err != nil {
		return out, nodesAway(err, "ironvip backend list")
	}
	// The rows of a service have no order, so the page needs all rows of its last service.
	var read []v1.CheckComparison
	for row := range rows {
		if n := len(read); n > in.Limit && read[n-1].Service != row.Service {
			break
		}
		if in.Cursor == "" || checkOrder.Compare(keyOfCheck(&row), last) > 0 {
			read = append(read, row)
		}
	}
	out.Items, out.Next, err = request.List(request.Paging(in.LongPaging), checkOrder, read, keyOfCheck)
	return out, err
}

var checkOrder = request.Order[checkKey]{List: "checks", Compare: compareChecks}

// checkKey identifies a row of the comparison of checks.
type checkKey struct {
	Backend vip.BackendKey
	Port    uint16
	Check   string
}

func compareChecks(a, b checkKey) int {
	return cmp.Or(a.Backend.Compare(b.Backend), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Check, b.Check))
}

func keyOfCheck(c *v1.CheckComparison) checkKey {
	k := checkKey{Port: c.Port, Check: c.Check}
	k.Backend.Service, _ = vip.ParseServiceKey(c.Service) // both were written by String
	k.Backend.Address, k.Backend.Port, _ = vip.ParseBackendID(c.Backend)
	return k
}
