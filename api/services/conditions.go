package services

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

// etag returns the ETag of a service: the revisions of its spec and of its status.
func etag(specRev, statusRev uint64) string { return fmt.Sprintf(etagForm, specRev, statusRev) }

const etagForm = `"%d.%d"`

// Preconditions are the headers of a conditional write. Inputs embed it, so it is exported: huma
// ignores unexported fields.
type Preconditions struct {
	IfMatch     string `header:"If-Match" doc:"ETag of the service version that the caller has read: 412 if the spec has changed since. The part after the dot, the status, is ignored"`
	IfNoneMatch string `header:"If-None-Match" doc:"\"*\": create only, 412 if the service exists"`
}

// check returns a function that refuses the write if the preconditions don't hold.
func (p Preconditions) check(key vip.ServiceKey) (rest.Check, error) {
	if p.IfNoneMatch != "" && strings.TrimSpace(p.IfNoneMatch) != "*" {
		return nil, server.BadRequest("If-None-Match must be * in a write", "use If-Match to write only to the version you have read")
	}
	var seen []uint64
	anything := strings.TrimSpace(p.IfMatch) == "*"
	if p.IfMatch != "" && !anything {
		for tag := range strings.SplitSeq(p.IfMatch, ",") {
			var rev, status uint64
			tag = strings.TrimSpace(tag)
			if _, err := fmt.Sscanf(tag, etagForm, &rev, &status); err != nil || tag != etag(rev, status) {
				return nil, server.BadRequest("If-Match: "+p.IfMatch+" is not an ETag of this API", "send the ETag from a GET")
			}
			seen = append(seen, rev)
		}
	}
	if p.IfMatch == "" && p.IfNoneMatch == "" {
		return nil, nil
	}
	return func(_ vip.Service, rev uint64, exists bool) error {
		switch {
		case p.IfNoneMatch != "" && exists:
			return server.Refuse(http.StatusPreconditionFailed, v1.CodePreconditionFailed, "service \""+key.String()+"\" exists", "omit If-None-Match to replace it")
		case p.IfMatch == "" || exists && (anything || slices.Contains(seen, rev)):
			return nil
		case !exists:
			return server.Refuse(http.StatusPreconditionFailed, v1.CodePreconditionFailed, "service \""+key.String()+"\" does not exist", "omit If-Match to create it")
		}
		return server.Refuse(http.StatusPreconditionFailed, v1.CodePreconditionFailed,
			fmt.Sprintf("service %q was changed: its spec is at revision %d", key, rev), "GET it again, repeat the change on the new version, and send its ETag")
	}, nil
}

// matches reports whether tag is in a header of ETags (If-None-Match of a GET).
func matches(header, tag string) bool {
	for t := range strings.SplitSeq(header, ",") { // ironvip's ETags contain no commas
		t = strings.TrimPrefix(strings.TrimSpace(t), "W/") // the mark of a weak one
		if t == "*" || strings.Trim(t, `"`) == strings.Trim(tag, `"`) {
			return true
		}
	}
	return false
}
