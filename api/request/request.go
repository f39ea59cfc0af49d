package request

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"golang.org/x/sync/semaphore"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
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
	case err != nil, !IsUTF8(params), kind == v1.MergePatchType, kind == jsonPatchType:
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

// IsUTF8 reports whether the parameters of a content type name no other character set, in which the body would mean
// something else.
func IsUTF8(params map[string]string) bool {
	set := strings.ToLower(params["charset"])
	return set == "" || set == "utf-8" || set == "us-ascii"
}

// jsonPatchType is the content type of a JSON patch (RFC 6902), which the API does not accept.
const jsonPatchType = "application/json-patch+json"

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
