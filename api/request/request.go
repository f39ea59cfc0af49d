package request

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/semaphore"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Payload is a body that the handler reads itself, strictly. Huma's reader accepts duplicate keys
// and reports no places. Inputs embed it, so it is exported: huma ignores unexported fields.
type Payload struct {
	RawBody     []byte
	ContentType string `header:"Content-Type" hidden:"true"`
}

// Media refuses a body that does not state that it is JSON, such as a form, which any web page can
// send.
func Media(contentType string) *server.Problem {
	if contentType == "" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil, !isUTF8(params), kind == v1.MergePatchType, kind == jsonPatchType:
	case kind == "application/json", strings.HasSuffix(kind, "+json"), kind == "text/json", kind == "text/plain",
		kind == "application/octet-stream":
		return nil
	case kind == "application/x-www-form-urlencoded":
		return server.Refuse(http.StatusUnsupportedMediaType, v1.CodeUnsupportedMedia, "unsupported content type "+kind,
			"call curl with --json instead of -d, or with -H 'Content-Type: application/json'")
	}
	return server.Refuse(http.StatusUnsupportedMediaType, v1.CodeUnsupportedMedia, "unsupported content type "+contentType,
		"send JSON with Content-Type: application/json")
}

// isUTF8 reports whether the parameters of a content type name no other character set, in which the body would mean
// something else.
func isUTF8(params map[string]string) bool {
	set := strings.ToLower(params["charset"])
	return set == "" || set == "utf-8" || set == "us-ascii"
}

// jsonPatchType is the content type of a JSON patch (RFC 6902), which the API does not accept.
const jsonPatchType = "application/json-patch+json"

// MergePatch refuses a body that does not state that it is a JSON merge patch: as the body of
// another kind of patch, it would have another meaning.
func MergePatch(contentType string) *server.Problem {
	if kind, params, err := mime.ParseMediaType(contentType); err == nil && kind == v1.MergePatchType && isUTF8(params) {
		return nil
	}
	return server.Refuse(http.StatusUnsupportedMediaType, v1.CodeUnsupportedMedia, fmt.Sprintf("unsupported content type %q", contentType),
		"send a JSON merge patch with Content-Type: "+v1.MergePatchType).AcceptPatch(v1.MergePatchType)
}

// The budgets bound the bytes that all requests decode at one time: a body becomes up to 50 times as large. Others
// wait, each for less than the time of the bodies before it, a tenth of a second for 1 MiB. Small bodies have a budget
// of their own, so that they don't wait for large ones.
var (
	largeBudget = semaphore.NewWeighted(3 << 20)
	smallBudget = semaphore.NewWeighted(1 << 20)
)

const SmallBody = 64 << 10

// Decoded returns what read makes of a body, within its budget.
func Decoded[T any](body []byte, read func([]byte) (T, []vip.Problem)) (T, []vip.Problem) {
	budget := smallBudget
	if len(body) > SmallBody {
		budget = largeBudget
	}
	_ = budget.Acquire(context.Background(), int64(len(body))) // the limits of bodies are smaller
	defer budget.Release(int64(len(body)))
	return read(body)
}

// Decode reads a JSON object into a struct by its toml tags. An empty body counts as an empty
// object. An unknown key and a value of the wrong type have the code of an invalid object of this
// kind.
func (b *Payload) Decode(into any, code string) *server.Problem {
	if p := Media(b.ContentType); p != nil {
		return p
	}
	if len(strings.TrimSpace(string(b.RawBody))) == 0 {
		return nil
	}
	isJSON, problems := Decoded(b.RawBody, func(body []byte) (bool, []vip.Problem) {
		tree, problems := strict.ParseJSON(body)
		if tree == nil {
			return false, problems
		}
		return true, append(problems, strict.Decode(tree, into, "")...)
	})
	if !isJSON {
		return NotJSON(problems)
	}
	if len(problems) > 0 {
		return InvalidAs(code, problems)
	}
	return nil
}

func NotJSON(problems []vip.Problem) *server.Problem {
	message := problems[0].Message
	if strings.HasPrefix(message, "not ") {
		message = "is " + message
	}
	return server.BadRequest("the body "+message, "send one JSON object", problems...)
}

// Invalid is the problem of a body that is JSON but not a valid service, or part of one.
func Invalid(problems []vip.Problem) *server.Problem {
	return InvalidAs(v1.CodeInvalidService, problems)
}

// InvalidAs is the problem of a body that is JSON but not a valid object.
func InvalidAs(code string, problems []vip.Problem) *server.Problem {
	return Refuse(http.StatusUnprocessableEntity, code, problems)
}

// Refuse is the problem of a request with errors. The detail is the first one and the number of the
// others.
func Refuse(status int, code string, problems []vip.Problem) *server.Problem {
	detail, hint := problems[0].Error(), problems[0].Hint
	if more := len(problems) - 1; more > 0 {
		detail, hint = fmt.Sprintf("%s, and %d more", detail, more), "see errors"
	}
	return server.Refuse(status, code, detail, hint, problems...)
}

// Etag returns the ETag of a service: the revisions of its spec and of its status.
func Etag(specRev, statusRev uint64) string { return fmt.Sprintf(etagForm, specRev, statusRev) }

const etagForm = `"%d.%d"`

// Preconditions are the headers of a conditional write. Inputs embed it, so it is exported: huma
// ignores unexported fields.
type Preconditions struct {
	IfMatch     string `header:"If-Match" doc:"ETag of the service version that the caller has read: 412 if the spec has changed since. The part after the dot, the status, is ignored"`
	IfNoneMatch string `header:"If-None-Match" doc:"\"*\": create only, 412 if the service exists"`
}

// Check returns a function that refuses the write if the Preconditions don't hold.
func (p Preconditions) Check(key vip.ServiceKey) (rest.Check, error) {
	if p.IfNoneMatch != "" && strings.TrimSpace(p.IfNoneMatch) != "*" {
		return nil, server.BadRequest("If-None-Match must be * in a write", "use If-Match to write only to the version you have read")
	}
	var seen []uint64
	anything := strings.TrimSpace(p.IfMatch) == "*"
	if p.IfMatch != "" && !anything {
		for tag := range strings.SplitSeq(p.IfMatch, ",") {
			var rev, status uint64
			tag = strings.TrimSpace(tag)
			if _, err := fmt.Sscanf(tag, etagForm, &rev, &status); err != nil || tag != Etag(rev, status) {
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

// Matches reports whether tag is in a header of ETags (If-None-Match of a GET).
func Matches(header, tag string) bool {
	for t := range strings.SplitSeq(header, ",") { // ironvip's ETags contain no commas
		t = strings.TrimPrefix(strings.TrimSpace(t), "W/") // the mark of a weak one
		if t == "*" || strings.Trim(t, `"`) == strings.Trim(tag, `"`) {
			return true
		}
	}
	return false
}
