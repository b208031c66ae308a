"""Wire types: the Responses API as frozen values. They have no behaviour and import no other
package of ours."""
